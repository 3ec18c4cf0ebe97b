"""Every entry point of the layouts: values of other kinds are taken as the same integers, or refused by LayoutError.

The two tables hold each entry point with arguments that it takes. A test replaces one argument at a time:

- By the same integers of other classes (NumPy integers, lists, `torch.Size`): the answer must be the same.
- By values that mean nothing there: they must raise LayoutError.
- By values that some arguments take: an answer is allowed, and no other exception.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any

import numpy as np
import pytest

from layoutgemm import Facts, dim
from layoutgemm.errors import LayoutError
from layoutgemm.interop import from_cute, tensor_layout, to_module
from layoutgemm.layouts import ComposedLayout, CounterExample, E, Layout, LinearLayout, ScaledBasis, Swizzle, functions
from layoutgemm.layouts.notation import parse
from layoutgemm.layouts.proofs.prove import bijective, covers, disjoint, injective, prove
from layoutgemm.layouts.symbols.dims import ceil_div, dims
from tests import needs

L = Layout((4, 8), (8, 1))
M = dim("hostile_rows", multiple_of=8)
SYMBOLIC = Layout((M, 8), (8, 1))
ATOM = Swizzle(3, 4, 3, "bytes")
UNDER = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
BITS = LinearLayout((1, 2, 4), (1, 2), ("i", "j"))


def is_own(f: object) -> bool:
    """True for a function that `functions` defines."""
    return isfunction(f) and f.__module__ == functions.__name__


class Kin:
    """A module of another package with layouts and swizzles, and no composed layouts."""

    Layout = Layout
    Swizzle = Swizzle


Entry = tuple[Callable[..., Any], tuple[Any, ...]]

# Arguments of integers and of tuples of them: bools, floats and texts are refused wherever they stand.
INTEGERS: dict[str, Entry] = {
    "Layout": (Layout, ((4, 8), (8, 1))),
    "Layout, one mode": (Layout, (4, 2)),
    "Layout.identity": (Layout.identity, ((4, 8),)),
    "Layout.ordered": (Layout.ordered, ((4, 8), (1, 0))),
    "Layout.from_expr": (lambda s: Layout.from_expr(lambda x, y: x + 4 * y, s), ((4, 8),)),
    "Layout.from_expr, named": (lambda m, k: Layout.from_expr("m + 4*k", m=m, k=k), (4, 8)),
    "call": (L, (2, 3)),
    "call, flat": (L, (9,)),
    "call, tuple": (L, ((2, 3),)),
    "call, symbols": (SYMBOLIC, (2, 3)),
    "coord": (L.coord, (9,)),
    "getitem": (lambda i: L[i], (1,)),
    "getitem, symbols": (lambda i: SYMBOLIC[i], (1,)),
    "slice": (lambda i: L.slice((i, None)), (1,)),
    "slice, symbols": (lambda i: SYMBOLIC.slice((i, None)), (1,)),
    "dice": (lambda i: L.dice((i, None)), (1,)),
    "group": (Layout((2, 3, 5)).group, (0, 2)),
    "with_shape": (L.with_shape, ((8, 4),)),
    "with_shape, two": (L.with_shape, (8, 4)),
    "compose": (L.compose, ((2, 4),)),
    "compose, int": (L.compose, (4,)),
    "complement": (Layout(4, 2).complement, (32,)),
    "logical_divide": (Layout((4, 8)).logical_divide, ((2, 4),)),
    "zipped_divide": (Layout((4, 8)).zipped_divide, ((2, 4),)),
    "tiled_divide": (Layout((4, 8)).tiled_divide, ((2, 4),)),
    "flat_divide": (Layout((4, 8)).flat_divide, ((2, 4),)),
    "divide, symbols": (SYMBOLIC.zipped_divide, ((8, 4),)),
    "logical_product": (Layout((2, 2)).logical_product, (4,)),
    "zipped_product": (Layout((2, 2)).zipped_product, (4,)),
    "tiled_product": (Layout((2, 2)).tiled_product, (4,)),
    "flat_product": (Layout((2, 2)).flat_product, (4,)),
    "blocked_product": (Layout((2, 2)).blocked_product, (4,)),
    "raked_product": (Layout((2, 2)).raked_product, (4,)),
    "raked_product, symbols": (SYMBOLIC.raked_product, (4,)),
    "tile_to_shape": (Layout((2, 2)).tile_to_shape, ((4, 4), (1, 0))),
    "coalesce": (Layout((2, (1, 6))).coalesce, ((1, 1),)),
    "filter": (Layout((2, 6), (0, 1)).filter, ((1, 1),)),
    "coalesce, symbols": (SYMBOLIC.coalesce, ((1, 1),)),
    "upcast": (Layout((8, 4)).upcast, (2,)),
    "downcast": (Layout((8, 4)).downcast, (2,)),
    "recast": (Layout((8, 4)).recast, (8, 16)),
    "upcast, symbols": (Layout((M, 4), (1, M)).upcast, (2,)),
    "max_common_vector": (L.max_common_vector, (32,)),
    "covers": (L.covers, (32,)),
    "covers, tuple": (L.covers, ((4, 8),)),
    "disjoint": (lambda n: L.disjoint(L, n), (32,)),
    "at": (lambda m: SYMBOLIC.at(hostile_rows=m), (64,)),
    "Swizzle": (Swizzle, (3, 4, 3, 16)),
    "Swizzle, call": (ATOM, (300,)),
    "Swizzle, left": (Swizzle(2, 3, -3), (300,)),
    "Swizzle.recast": (ATOM.recast, (16,)),
    "Swizzle.upcast": (ATOM.upcast, (2,)),
    "Swizzle.downcast": (ATOM.downcast, (2,)),
    "ComposedLayout": (lambda n: ComposedLayout(ATOM, n, L), (8,)),
    "ComposedLayout, call": (UNDER, (3, 5)),
    "ComposedLayout.coord": (UNDER.coord, (9,)),
    "ComposedLayout.getitem": (lambda i: UNDER[i], (1,)),
    "ComposedLayout.slice": (lambda i: UNDER.slice((i, None)), (1,)),
    "ComposedLayout.recast": (UNDER.recast, (32, 16)),
    "ComposedLayout.upcast": (UNDER.upcast, (2,)),
    "ComposedLayout.divide": (UNDER.zipped_divide, ((4, 8),)),
    "ComposedLayout.tile_to_shape": (UNDER.tile_to_shape, ((16, 64), (1, 0))),
    "E": (E, (1, 0)),
    "E times": (lambda n: n * E(1), (8,)),
    "ScaledBasis": (ScaledBasis, (8, (0, 1))),
    "LinearLayout": (LinearLayout, ((1, 2, 4), (1, 2))),
    "LinearLayout, width": (lambda w, o: LinearLayout((1, 2, 4), width=w, offset=o), (5, 8)),
    "LinearLayout, call": (BITS, (5,)),
    "LinearLayout, modes": (BITS, (1, 2)),
    "LinearLayout, names": (lambda i, j: BITS(i=i, j=j), (1, 2)),
    "LinearLayout.coord": (BITS.coord, (5,)),
    "LinearLayout.identity": (LinearLayout.identity, (5,)),
    "LinearLayout.solve": (BITS.solve, (5,)),
    "LinearLayout.of, bits": (lambda n: LinearLayout.of(ATOM, bits=n), (12,)),
    "dim": (lambda m, low, high: dim("hostile", m, low, high), (4, 4, 64)),
    "symbol times": (lambda n: M * n, (4,)),
    "symbol plus": (lambda n: n + M, (4,)),
    "symbol minus": (lambda n: M - n, (4,)),
    "symbol //": (lambda n: M // n, (4,)),
    "symbol %": (lambda n: M % n, (4,)),
    "symbol **": (lambda n: M**n, (2,)),
    "ceil_div": (ceil_div, (M, 4)),
    "size": (functions.size, ((4, 8),)),
    "rank": (functions.rank, ((4, 8),)),
    "get": (lambda n: functions.get((4, (8, 2)), (n,)), (1,)),
    "depth": (functions.depth, ((4, 8),)),
    "flatten": (functions.flatten, ((4, (8,)),)),
    "product": (functions.product, ((4, 8),)),
    "product_each": (functions.product_each, ((4, (8, 2)),)),
    "congruent": (functions.congruent, ((4, 8), (1, 2))),
    "compatible": (functions.compatible, (32, (4, 8))),
    "weakly_congruent": (functions.weakly_congruent, (1, (4, 8))),
    "crd2idx": (functions.crd2idx, ((1, 2), (4, 8), (8, 1))),
    "idx2crd": (functions.idx2crd, (9, (4, 8))),
    "select": (lambda modes: functions.select(L, modes), ((1, 0),)),
    "group_modes": (lambda i, j: functions.group_modes(L, i, j), (0, 2)),
    "make_layout": (functions.make_layout, ((4, 8), (8, 1))),
    "make_swizzle": (functions.make_swizzle, (3, 4, 3)),
    "recast_layout": (lambda new, old: functions.recast_layout(new, old, L), (8, 16)),
}

# Arguments that are layouts, texts or other objects.
OBJECTS: dict[str, Entry] = {
    "Layout.join": (Layout.join, (L, Layout(2))),
    "Layout.parse": (Layout.parse, ("4:1",)),
    "parse": (parse, ("4:1", "64 | M")),
    "Swizzle.parse": (Swizzle.parse, ("S<3,4,3>",)),
    "ComposedLayout.parse": (ComposedLayout.parse, ("S<3,4,3> o 0 o 4:1",)),
    "from_expr": (Layout.from_expr, ("i", 4)),
    "expr": (L.expr, ("i", "j")),
    "compose, layout": (L.compose, (Layout(4),)),
    "compose, swizzled": (Layout(512, 2).compose, (UNDER,)),
    "Swizzle.compose": (ATOM.compose, (L,)),
    "ComposedLayout.compose": (UNDER.compose, (Layout(4),)),
    "ComposedLayout": (ComposedLayout, (ATOM, 0, L)),
    "max_common_layout": (L.max_common_layout, (L,)),
    "equivalent": (L.equivalent, (L,)),
    "congruent": (L.congruent, (L,)),
    "disjoint": (L.disjoint, (L,)),
    "covers": (L.covers, (L,)),
    "ComposedLayout.equivalent": (UNDER.equivalent, (UNDER,)),
    "SymbolicLayout.equivalent": (SYMBOLIC.equivalent, (SYMBOLIC,)),
    "given": (SYMBOLIC.given, ("64 | hostile_rows",)),
    "prove": (prove, (L, L, "64 | M")),
    "prove.covers": (covers, (L, 4, "64 | M")),
    "prove.disjoint": (disjoint, (L, L, 0, "64 | M")),
    "prove.injective": (injective, (L,)),
    "prove.bijective": (bijective, (L,)),
    "Facts": (Facts, ("64 | M",)),
    "Facts of": (Facts("64 | M"), (L,)),
    "LinearLayout.of": (LinearLayout.of, (L, ("i", "j"))),
    "LinearLayout.from_matrix": (LinearLayout.from_matrix, ([[1, 0], [0, 1]],)),
    "LinearLayout.compose": (BITS.compose, (Layout(8),)),
    "LinearLayout.equivalent": (BITS.equivalent, (L,)),
    "LinearLayout.first_difference": (BITS.first_difference, (L,)),
    "LinearLayout.to_composed": (BITS.to_composed, ("bytes",)),
    "LinearLayout names": (lambda names: LinearLayout((1, 2, 4), (1, 2), names), (("i", "j"),)),
    "make_layout_tv": (functions.make_layout_tv, (Layout((8, 4)), Layout((4, 4)))),
    "make_composed_layout": (functions.make_composed_layout, (ATOM, 0, L)),
    "append": (functions.append, (L, Layout(2))),
    "prepend": (functions.prepend, (L, Layout(2))),
    "dim": (dim, ("M",)),
    "dims": (dims, ("M N",)),
    "from_cute": (from_cute, (L,)),
    "from_cute, element": (lambda e: from_cute(L, element=e), ("bf16",)),
    "tensor_layout": (tensor_layout, (np.zeros((4, 8)),)),
    "to_module": (lambda x: to_module(x, Kin), (L,)),
    "to_module, module": (lambda module: to_module(L, module), (Kin,)),
    "from_cute, names": (lambda names: from_cute(L, names=names), (("M",),)),
    "from_cute, spaces": (lambda a, b: from_cute(L, spaces=(a, b)), ("gmem", "rmem")),
    **{name: (getattr(functions, name), (L,)) for name in ("cosize", "shape", "stride", "nullspace", "right_inverse")},
}


def nested(depth: int, inside: Any = 4) -> Any:
    """`inside` in so many tuples."""
    for _ in range(depth):
        inside = (inside,)
    return inside


class Odd:
    """An object of no kind that any argument is."""


# What no integer, tuple, layout or text is; and what an argument may take, but must not fail on in another way.
NOTHING: tuple[Any, ...] = (Odd(), object(), lambda: 4, Odd, {4}, {"a": 4}, 1j, nested(3000), [nested(3000)])
NO_INTEGER: tuple[Any, ...] = (True, np.True_, 1.0, 4.0, float("nan"), np.float64(4), np.float32(4), "4", "4:1", b"4")
ANYTHING: tuple[Any, ...] = (
    None, (), [], {}, "", "\ud800", -1, 0, 10**30, -(10**30), 10**5000, -(10**5000), 2**63, 2**64, np.array(4),
    np.array([4]), np.array([[4]]), np.array([4.5]), range(4), (4,), [4, [8]], L, UNDER, ATOM, SYMBOLIC, M, M // 8,
    E(1), (4, 8, 16), (True, 8), (4, "8"), (4, 8.0), (None, 8), (0, 8), (-1, 8), nested(64), nested(65),
    nested(70, None), (10**5000, 8), "(4,8):(8,1)", "M//0:1",
)  # fmt: skip


def replaced(arguments: tuple[Any, ...], i: int, value: Any) -> list[Any]:
    """The arguments with another one at i."""
    out = list(arguments)
    out[i] = value
    return out


def answer(call: Callable[..., Any], arguments: list[Any]) -> Any:
    """The printable result of the call, or None where it is refused."""
    try:
        out = call(*arguments)
        if not isinstance(out, (int, tuple)):
            assert isinstance(str(out), str) and isinstance(repr(out), str)
        return out
    except LayoutError as error:
        str(error).encode()
        assert len(str(error)) < 20_000
        return None


CASES = [(name, *entry) for table in (INTEGERS, OBJECTS) for name, entry in table.items()]


@pytest.mark.parametrize(("name", "call", "arguments"), CASES, ids=[name for name, *_ in CASES])
def test_no_other_exception(name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    call(*arguments)
    for i in range(len(arguments)):
        for value in (*NO_INTEGER, *ANYTHING):
            if name == "from_cute, element" and isinstance(value, (int, tuple)):
                continue  # number formats say what they take
            answer(call, replaced(arguments, i, value))
        for value in NOTHING:
            if name == "from_expr" and i == 0 and callable(value):
                continue  # a formula is a function
            if name == "from_cute, element" and isinstance(value, (tuple, list)):
                continue
            assert answer(call, replaced(arguments, i, value)) is None, f"argument {i}: {type(value)}"


@pytest.mark.parametrize(("name", "call", "arguments"), CASES[: len(INTEGERS)], ids=list(INTEGERS))
def test_integers_are_integers_and_nothing_else_is(
    name: str, call: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    right = call(*arguments)
    for i, given in enumerate(arguments):
        if isinstance(given, tuple):
            alike = [list(given), _with(given, np.int64), _with(given, np.uint8), list(_with(given, np.int16))]
            wrong = [_instead(given, j, x) for j in range(len(given)) for x in (*NO_INTEGER, Odd(), nested(70))]
        elif given is M:
            continue
        else:
            alike = [np.int64(given), np.int16(given), type("Sub", (int,), {})(given)]
            wrong = []
        for value in alike:
            got = call(*replaced(arguments, i, value))
            assert got == right and repr(got) == repr(right), f"argument {i}: {value!r} gives {got!r}, not {right!r}"
        for value in (*NO_INTEGER, *wrong):
            with pytest.raises(LayoutError):
                call(*replaced(arguments, i, value))


def _with(x: Any, kind: Callable[[Any], Any]) -> Any:
    return tuple([_with(y, kind) for y in x]) if isinstance(x, tuple) else kind(x)


def _instead(x: tuple[Any, ...], i: int, value: Any) -> Any:
    out = list(x)
    out[i] = value
    return tuple(out)


def test_the_size_of_torch_is_a_tuple() -> None:
    torch = needs.module("torch")
    size = torch.Size((4, 8))
    assert Layout(size) == Layout((4, 8)) and functions.size(size) == functions.product(size) == 32
    assert L.compose(torch.Size((2, 4))) == L.compose((2, 4)) and L.coalesce(size) == L.coalesce((4, 8))
    assert Layout((8, 64)).zipped_divide(size) == Layout((8, 64)).zipped_divide((4, 8))
    for tensor in (torch.tensor(4.5), torch.tensor([True])):
        with pytest.raises(LayoutError):
            L(tensor)


@pytest.mark.parametrize("name", [name for name, f in vars(functions).items() if is_own(f) and name[0] != "_"])
def test_every_function_names_the_operand_that_is_no_layout(name: str) -> None:
    function = getattr(functions, name)
    for wrong in (None, Odd(), "4:1", 2.5, lambda: 4, np.float64(3)):
        for count in range(4):
            try:
                function(*[wrong] * count)
            except LayoutError as error:
                assert len(str(error)) > 20
            except TypeError as error:  # Python's, for a number of arguments that the function does not take
                assert "argument" in str(error) and name in str(error), error
            else:
                raise AssertionError(f"{name} takes {count} of {wrong!r}")


# ---------------------------------------------------------------- depth and size


@pytest.mark.parametrize(
    "grow",
    [
        lambda x: x.logical_product(1), lambda x: x.zipped_product(1), lambda x: Layout.join(x),
        lambda x: Layout.join(Layout(1), x), lambda x: Layout.join(x, Layout(1)).group(0, 2),
        lambda x: x.zipped_divide((1,)), lambda x: x.tiled_divide((1,)), lambda x: x.blocked_product(1),
        lambda x: functions.append(Layout(2), x), lambda x: functions.make_layout(x),
        lambda x: Layout.join(x).logical_divide((1,)), lambda x: SYMBOLIC.logical_product(x), lambda x: ATOM @ x,
    ],
)  # fmt: skip
def test_no_layout_nests_deeper_than_the_bound(grow: Callable[[Any], Any]) -> None:
    x: Any = Layout((2, 3))
    try:
        for _ in range(300):
            x = grow(x)
    except LayoutError as error:
        assert "nest" in str(error) or "swizzles" in str(error) or "symbols" in str(error)
    assert x.depth <= 64 and getattr(x, "swizzles", 0) <= 64
    assert x == x and hash(x) == hash(x) and len(repr(x)) < 40_000
    if isinstance(x, Layout):
        assert x.flatten().depth <= 1 and x.coalesce().size == x.size
        assert x._symbolic or parse(str(x)) == x


def test_composition_nests_no_deeper_than_the_bound() -> None:
    right = Layout(nested(64, 8), nested(64, 1))
    assert Layout(8, 2).compose(right).depth == 64
    with pytest.raises(LayoutError, match="must nest at most 64 deep"):
        Layout((4, 2), (1, 100)).compose(right)


def test_large_integers_are_printed_or_refused() -> None:
    large = 2**4000
    x = Layout((large, large, large, large, large))
    assert f":({','.join(map(str, (1, large, large**2, large**3)))},0x1000" in str(x)
    assert f"{large}, 0x1000" not in repr(x) and f"{large**3}, 0x1000" in repr(x)
    assert str(Layout(large)) == f"{large}:1"
    for refused in (lambda: Layout(10**5000), lambda: Layout(4, 10**5000), lambda: Layout((4, 8), (1, -(10**5000)))):
        with pytest.raises(LayoutError, match="must be an integer of at most 4096 bits, not 16610"):
            refused()
    with pytest.raises(LayoutError, match="is outside"):
        L(10**5000)


def test_what_would_take_for_ever_is_refused() -> None:
    a, b, c, d = dims("a b c d")
    for refused in (
        lambda: Layout(4, E(10**9)), lambda: a ** (10**8), lambda: (a + b + c + d) ** 60, lambda: ((a + b) ** 32) ** 32,
        lambda: LinearLayout.identity(10**30), lambda: (a + b + c + d) ** 32 * (a + b + c + d + 1) ** 32,
        lambda: Swizzle(3, 10**12, 3), lambda: Swizzle(3, 3, 10**12), lambda: parse("S<3,999999999999,3>"),
        lambda: ((a**32) ** 32) ** 32, lambda: parse("4:1@999999999999"), lambda: LinearLayout((1,), width=10**12),
        lambda: LinearLayout.of(ATOM, bits=10**12),
    ):  # fmt: skip
        with pytest.raises(LayoutError):
            refused()
    assert Layout(4, E(40))(3) == (0,) * 40 + (3,)


def test_a_counterexample_that_refutes_nothing_is_refused_by_the_library() -> None:
    for wrong in (((0, 1), 4, 4), (0, None, None), (nested(3000), 4, 4), (0, 10**5000, 10**5000)):
        with pytest.raises(LayoutError):
            CounterExample(*wrong)


def test_nests_that_share_their_parts_are_counted_before_they_are_walked() -> None:
    nest: Any = (4,)
    for _ in range(40):
        nest = (nest, nest)
    product, size = functions.product, functions.size
    for call in (lambda: Layout(nest), lambda: Layout((4, 8)).compose(nest), lambda: product(nest), lambda: size(nest)):
        with pytest.raises(LayoutError, match="must have at most 1048576 entries"):
            call()
    with pytest.raises(LayoutError, match=r"entries|congruent"):
        Layout((4, 8), nest)
