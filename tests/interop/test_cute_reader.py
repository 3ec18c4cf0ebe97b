"""from_cute of plain Python objects: pycute and its kin, torch, NumPy; and what it refuses. No DSL."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import layoutgemm
from layoutgemm import ComposedLayout, E, Layout, LayoutError, Swizzle, dim
from layoutgemm.dtypes import bf16
from layoutgemm.errors import SwizzleError
from layoutgemm.interop import from_cute, tensor_layout, to_module
from layoutgemm.interop.dsl_layouts import Symbols, layout_of, memref
from layoutgemm.layouts.proofs.prove import prove
from tests import needs
from tests.layouts.strategies import pairs


# pycute's classes as far as their users see them: names, arguments and attributes.
class PycuteLayout:
    def __init__(self, _shape: Any, _stride: Any = None) -> None:
        self.shape, self.stride = _shape, _stride


class PycuteSwizzle:
    def __init__(self, bits: int, base: int, shift: int) -> None:
        self.bits, self.base, self.shift = bits, base, shift


class PycuteComposed:
    def __init__(self, layoutB: Any, offset: int, layoutA: Any) -> None:
        self.layoutB, self.offset, self.layoutA = layoutB, offset, layoutA


for _kind, _name in ((PycuteLayout, "Layout"), (PycuteSwizzle, "Swizzle"), (PycuteComposed, "ComposedLayout")):
    _kind.__name__ = _kind.__qualname__ = _name
LOOKALIKE = SimpleNamespace(
    Layout=PycuteLayout, Swizzle=PycuteSwizzle, ComposedLayout=PycuteComposed, __name__="pycute"
)


def module(name: str) -> Any:
    where = "PyPI's pycute is another package: put the folder python/ of NVIDIA/cutlass on PYTHONPATH"
    return LOOKALIKE if name == "like pycute" else pytest.importorskip(name, reason=where if name == "pycute" else None)


MODULES = ("like pycute", "pycute", "tensor_layouts")


@pytest.mark.parametrize("name", MODULES)
@settings(max_examples=40)
@given(pair=pairs())
def test_layouts_there_and_back(name: str, pair: Any) -> None:
    theirs = module(name)
    ours = Layout(*pair)
    assert from_cute(to_module(ours, theirs)) == ours


@pytest.mark.parametrize("name", MODULES)
def test_swizzled_layouts_there_and_back(name: str) -> None:
    theirs = module(name)
    for swizzle in (Swizzle(3, 3, 3), Swizzle(2, 4, 3), Swizzle(1, 0, -2)):
        assert from_cute(to_module(swizzle, theirs)) == swizzle
        for offset in (0, 24):
            ours = ComposedLayout(swizzle, offset, Layout((8, (4, 16)), (64, (1, 4))))
            got = to_module(ours, theirs)
            assert from_cute(got) == ours
            if name != "like pycute":  # as their package evaluates it
                assert all(int(got(i)) == ours(i) for i in range(0, ours.layout.size, 7))


def test_tensor_layouts_composed_of_two_layouts() -> None:
    theirs = module("tensor_layouts")
    first, last = theirs.Layout((8, 4), (4, 1)), theirs.Layout((4, 2), (1, 16))
    composed = theirs.ComposedLayout(first, last)
    assert [int(composed(i)) for i in range(8)] == from_cute(composed).offsets().tolist()
    with pytest.raises(LayoutError, match="at the offset 4"):
        from_cute(theirs.ComposedLayout(first, last, offset=4))


def test_units_of_python_swizzles() -> None:
    atom = PycuteComposed(PycuteSwizzle(3, 4, 3), 0, PycuteLayout((8, 64), (64, 1)))
    assert from_cute(atom) == Swizzle(3, 4, 3) @ Layout((8, 64), (64, 1))
    assert from_cute(atom, element="bf16") == Swizzle(3, 4, 3, 16) @ Layout((8, 64), (64, 1))
    assert from_cute(atom, element="bf16", unit="bytes") == Swizzle(3, 3, 3, 16) @ Layout((8, 64), (64, 1))
    assert from_cute(PycuteSwizzle(3, 4, 3), unit="bytes") == Swizzle(3, 4, 3, "bytes")
    with pytest.raises(LayoutError, match="say what the layout counts"):
        from_cute(atom, unit="bytes")
    with pytest.raises(SwizzleError, match="parts of the wider element"):
        from_cute(PycuteComposed(PycuteSwizzle(1, 0, 3), 0, PycuteLayout(8, 1)), element="f32", unit="bytes")


def test_numpy_strides_are_elements() -> None:
    array = np.zeros((4, 6, 8), np.int16)
    assert from_cute(array) == Layout((4, 6, 8), (48, 8, 1))
    assert from_cute(array.transpose(2, 0, 1)[::2]) == Layout((4, 4, 6), (2, 48, 8))
    assert from_cute(array[:, ::-1]) == Layout((4, 6, 8), (48, -8, 1))
    assert from_cute(np.broadcast_to(np.zeros(8), (4, 8))) == Layout((4, 8), (0, 1))
    assert tensor_layout(array).element.name == "i16"
    assert tensor_layout(np.zeros(3, complex)).element is None
    record = np.zeros(4, [("a", "i1"), ("b", "i2")])
    with pytest.raises(LayoutError, match="no whole elements of 2 bytes"):
        from_cute(record["b"])
    with pytest.raises(LayoutError, match="extent must be at least 1, not 0"):
        from_cute(np.zeros((0, 4)))


def test_torch_strides() -> None:
    torch = needs.module("torch")
    x = torch.zeros(4, 6, 8).bfloat16()
    assert from_cute(x) == Layout((4, 6, 8), (48, 8, 1))
    assert from_cute(x.permute(2, 0, 1)[::2]) == Layout((4, 4, 6), (2, 48, 8))
    assert from_cute(x[0, 0].expand(5, 8)) == Layout((5, 8), (0, 1))
    assert from_cute(torch.nn.Parameter(torch.zeros(3, 5))) == Layout((3, 5), (5, 1))
    assert tensor_layout(x).element.name == "bf16"
    assert from_cute(torch.empty_strided((4, 4), (1, 4), device="meta")) == Layout((4, 4))


def test_ours_are_taken_as_they_are() -> None:
    for own in (Layout(4), Swizzle(1, 0, 1), Swizzle(1, 0, 1) @ Layout(4), E(1), layoutgemm.wgmma(64)):
        assert from_cute(own) is own


@pytest.mark.parametrize("x", ["(4,8):(8,1)", (4, 8), 3, None, object(), SimpleNamespace(shape=(1,), stride=(1,))])
def test_anything_else_is_named(x: Any) -> None:
    with pytest.raises(TypeError, match=rf"from_cute takes layouts.* not .*{type(x).__name__}"):
        from_cute(x)
    with pytest.raises(TypeError, match="tensor_layout takes tensors"):
        tensor_layout(x)


def test_what_modules_have_not() -> None:
    for ours, why in ((Layout.identity((2, 3)), "leads to coordinates"), (Layout((dim("M"), 4)), "has symbols")):
        with pytest.raises(LayoutError, match=why):
            to_module(ours, LOOKALIKE)
    with pytest.raises(LayoutError, match="no ComposedLayout"):
        no_composed = SimpleNamespace(Layout=PycuteLayout, Swizzle=PycuteSwizzle, __name__="old")
        to_module(Swizzle(1, 0, 1) @ Layout(4), no_composed)
    with pytest.raises(TypeError, match="not int"):
        to_module(3, LOOKALIKE)


def test_the_root_name_is_this_function() -> None:
    assert layoutgemm.from_cute is from_cute


# The DSL's notation, read without the DSL.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(8,(2,2)):(2,(1,16))", "(8,(2,2)):(2,(1,16))"),
        ("4:0", "4:0"),
        ("(4,(2,3)):(1@0,(1@0@1,1@1@1))", "(4,(2,3)):(1@0,(1@0@1,1@1@1))"),
        ("(?,?{div=8}):(?{i64 div=8},1)", "(n0,n1):(d0,1)"),
        ("(?{i64},8):(1@1,?@0)", "(n0,8):(1@1,d1@0)"),
        ("((?,4),?):((1,?{div=4}),2)", "((n0,4),n2):((1,d1),2)"),
        ("(4,8):(_-1,8)", "(4,8):(-1,8)"),
        ("S<3,4,3> o 0 o (8,64):(64,1)", "S<3,4,3> o 0 o (8,64):(64,1)"),
        ("S<2,4,-3> o 16 o 8:1", "S<2,4,-3> o 16 o 8:1"),
        ("(8,64):(64,1) o 0 o (8,8):(1,64)", "(8,8):(64,8)"),
    ],
)
def test_notation(text: str, expected: str) -> None:
    # Names that were given out before have a number behind them.
    assert re.sub(r"_\d+", "", str(layout_of(text, Symbols(None)))) == expected


def test_facts_of_run_time_entries() -> None:
    symbols = Symbols(None)
    layout = layout_of("(?,?{div=8}):(?{i64 div=16},1)", symbols)
    symbols.check_used(layout)
    (n0, n1), (d0, one) = layout.shape, layout.stride
    assert (n1 % 8, d0 % 16, one, bool(n0 >= 1), bool(n1 >= 8), bool(d0 >= 0)) == (0, 0, 1, True, True, True)
    assert str(layout[1].logical_divide(8)) == f"(8,{n1}//8):(1,8)"
    with pytest.raises(LayoutError, match=rf"8 \| {n0}"):
        layout[0].logical_divide(8)
    with pytest.raises(LayoutError, match="whether"):
        bool(d0 >= 1)


def test_run_time_entries_of_two_layouts_are_no_one_integer() -> None:
    first, second = (layout_of("(?,8):(?,1)", Symbols(None)) for _ in range(2))
    assert not set(first.symbols) & set(second.symbols)
    assert not prove(first, second).ok and not first.equivalent(second).ok
    named = [layout_of("(?,8):(?,1)", Symbols(("M", "ld"))) for _ in range(2)]
    assert named[0].equivalent(named[1]).ok


def test_a_name_given_twice_is_one_integer_with_the_facts_of_both() -> None:
    symbols = Symbols(("M", "K", "K"))
    layout = layout_of("(?,?{div=8}):(?{div=12},1)", symbols)
    symbols.check_used(layout)
    assert layout == Layout((dim("M"), dim("K", multiple_of=24)), (dim("K", multiple_of=24), 1))
    K = dim("K", multiple_of=24)
    symbols = Symbols(("offset", "rows", "pitch"))  # in the order in which they are written
    assert str(layout_of("S<3,4,3> o ? o (?,8):(?,1)", symbols)) == "S<3,4,3> o offset o (rows,8):(pitch,1)"
    assert layout_of("?{div=8}:1", Symbols((K,))) == Layout(K)
    for names in (("M",), ("M", "K", "L", "N")):
        with pytest.raises(LayoutError, match="run-time entries"):
            symbols = Symbols(names)
            symbols.check_used(layout_of("(?,?):(?,1)", symbols))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(8,64):(64,1) o 8 o (8,8):(1,8)", "at the offset 8"),
        ("S<3,4,3> o 0 o S<3,4,3> o 0 o 8:1", "inner o offset o outer"),
        ("S<3,4,3>", "shape:stride"),
        ("(4,0):(1,4)", "at least 1"),
    ],
)
def test_notation_refused(text: str, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        layout_of(text, Symbols(None))


def test_a_swizzled_pointer_is_in_the_layout_of_the_whole_tensor_alone() -> None:
    text = '!cute.memref<bf16, smem, align<1024>, S<3,4,3>, "(8,64):(64,1)">'
    whole = memref(text, bf16, Symbols(None))
    assert whole.layout == Swizzle(3, 3, 3, 16) @ Layout((8, 64), (64, 1))
    assert (whole.element, whole.space, whole.alignment) == (bf16, "smem", 1024)
    with pytest.raises(LayoutError, match="repeats every 1024 bytes, and the tensor begins at a multiple of 16"):
        memref(text.replace("1024", "16"), bf16, Symbols(None))
    with pytest.raises(LayoutError, match="two are not read as one"):
        memref(text.replace("(8,64)", "S<3,3,3> o 0 o (8,64)"), bf16, Symbols(None))


def test_to_cute_without_the_dsl_says_so() -> None:
    code = "import sys; sys.modules['cutlass'] = None; from layoutgemm import Layout; Layout(4).to_cute()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "LayoutError: to_cute needs the CuTe DSL: pip install" in done.stderr


def test_nothing_of_the_dsl_is_loaded_for_these() -> None:
    before = set(sys.modules)
    from_cute(PycuteLayout(4, 1))
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] in ("cutlass", "torch")}
