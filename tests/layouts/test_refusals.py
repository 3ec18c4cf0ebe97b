"""Bad input raises where it is made, with the right class. The message names the operand and the arithmetic."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import layoutgemm.errors as errors
from layoutgemm.errors import (
    CompositionError,
    CoordinateError,
    LayoutError,
    ParseError,
    SwizzleError,
)
from layoutgemm.layouts import ComposedLayout, E, Layout, Swizzle, functions
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.prove import bijective, covers, injective, prove
from layoutgemm.layouts.symbols.dims import dim, dims

BAD_LAYOUTS: list[tuple[Any, Any, str]] = [
    # (shape, stride, what the message must contain)
    (True, None, "True"),
    ((4, True), None, "True"),
    ((4, 2), (1, True), "True"),
    (4.0, None, "4.0"),
    ((4, 2.5), None, "2.5"),
    ((4, 2), (1, 4.0), "4.0"),
    ("4", None, "4"),
    ("(4,8):(8,1)", None, "CuTe's notation is read by parse('(4,8):(8,1)')"),
    (None, None, "None"),
    (0, None, "0"),
    ((4, 0), None, "0"),
    ((4, (2, -3)), None, "-3"),
    ((4, 2), (1,), "(4,2)"),
    ((4, 2), (1, 2, 3), "(1,2,3)"),
    ((4, (2, 3)), (1, 4), "(4,(2,3))"),
    ((4, 2), (1, (2, 3)), "(1,(2,3))"),
    (4, (1,), "(1"),
    ((4,), 1, "(4"),
]


@pytest.mark.parametrize(("shape", "stride", "mention"), BAD_LAYOUTS, ids=lambda v: repr(v))
def test_bad_layouts(shape: Any, stride: Any, mention: str) -> None:
    with pytest.raises((LayoutError, TypeError)) as caught:
        Layout(shape) if stride is None else Layout(shape, stride)
    assert isinstance(caught.value, LayoutError), "bad values are the algebra's own error, which is a ValueError"
    assert mention.replace(" ", "") in str(caught.value).replace(" ", ""), str(caught.value)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: Layout((8, 64), (64, 1)) @ Swizzle(3, 3, 3), "behind a layout, as Swizzle(3, 3, 3) @ layout"),
        (lambda: Layout((4, 8), "C"), "not 'C' (str); Layout.ordered((4, 8), (1, 0)) is row-major"),
        (lambda: prove(lambda i, j: 8 * i + j, Layout((4, 8))), "; prove_formulas compares index formulas"),
        (lambda: Layout(np.zeros((4, 8))), "not an array of shape (4, 8) (ndarray); from_cute(x) is the layout of an"),
        (lambda: functions.zipped_divide((2, 4), Layout((4, 8))), "not (2, 4) (tuple); the layout comes first"),
        (lambda: functions.recast_layout(Layout(8), 16, 8), "it comes last: recast_layout(new_bits, old_bits, layout)"),
        (lambda: Layout((4, 8)).zipped_divide((2, (2, 2))), "8:4, which has 1; a single mode takes an int or a Layout"),
        (lambda: (dim("M") + 1) / 2, "(M+1) / 2: entries are integers; write (M+1) // 2"),
    ],
)
def test_a_refusal_names_the_way_that_was_meant(call: Any, hint: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    assert hint in str(caught.value)


def test_text_is_no_layout_to_compare_with() -> None:
    with pytest.raises(LayoutError, match=r"a comparison must be a layout, not '4:1' \(str\); .* parse\('4:1'\)"):
        Layout(4).equivalent("4:1")
    with pytest.raises(LayoutError, match=r"a comparison must be a layout, not 4 \(int\)$"):
        Layout(4).equivalent(4)


NO_LAYOUTS: list[Any] = [3, "4:1", None, 2.5, (4, 2), [1], {}, b"4:1", Layout, object(), np.zeros(3), Swizzle(1, 0, 3)]


def two_layouts(a: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Every operation and statement on two layouts, with `x` for one of them."""
    calls: dict[str, Callable[[], Any]] = {
        "prove": lambda: prove(a, x),
        "prove, turned": lambda: prove(x, a),
        "equivalent": lambda: a.equivalent(x),
        "disjoint": lambda: a.disjoint(x),
        "bijective": lambda: bijective(x),
        "injective": lambda: injective(x),
        "covers": lambda: covers(x, 4),
        "join": lambda: Layout.join(a, x),
        "append": lambda: functions.append(a, x),
        "append, turned": lambda: functions.append(x, a),
        "prepend": lambda: functions.prepend(x, a),
        "composition": lambda: functions.composition(x, a),
        "make_layout_tv": lambda: functions.make_layout_tv(a, x),
        "make_layout_tv, turned": lambda: functions.make_layout_tv(x, a),
        "max_common_vector, turned": lambda: functions.max_common_vector(x, a),
        "logical_divide, turned": lambda: functions.logical_divide(x, a),
        "blocked_product, turned": lambda: functions.blocked_product(x, a),
        "select": lambda: functions.select(a, x),
    }
    if not isinstance(x, (int, tuple, list)):  # these are tilers
        for name in ("compose", "logical_divide", "zipped_product", "raked_product", "max_common_layout"):
            if hasattr(a, name) and x is not None:
                calls[name] = lambda name=name: getattr(a, name)(x)
    return calls


@pytest.mark.parametrize("x", NO_LAYOUTS, ids=lambda x: repr(x)[:20])
def test_what_is_no_layout_is_refused_by_every_operation_on_two(x: Any) -> None:
    M, N = dims("M N")
    some = (Layout((4, 8)), Layout((M, N), (N, 1)), Swizzle(1, 0, 3) @ Layout(16), Swizzle(1, 0, 3) @ Layout((M, 16)))
    for a in (*some, Layout.identity((4, 8)), LinearLayout.of(Layout(16))):
        for name, call in two_layouts(a, x).items():
            if isinstance(a, LinearLayout) and not name.startswith(("prove", "append, turned", "make_layout_tv")):
                continue
            if (name, isinstance(x, (tuple, list))) == ("select", True) and hasattr(a, "select") and x == [1]:
                continue  # a list of modes
            if isinstance(x, Swizzle) and name == "composition":
                continue  # swizzle o layout is one
            with pytest.raises(LayoutError):
                call()


def test_a_matrix_over_bits_has_one_size() -> None:
    M, N = dims("M N")
    with pytest.raises(LayoutError, match="the other layout has symbols"):
        prove(Layout((M, N), (N, 1)), LinearLayout.of(Layout(16)))


def test_coordinates_are_no_offsets() -> None:
    found = Layout.identity((4, 4)).equivalent(Swizzle(1, 0, 3) @ Layout(16))
    assert found.explain() == "not equivalent: (0,0) gives (0,0) and 0"


def test_two_indices_print_as_two_indices() -> None:
    """A verdict about one layout names two flat indices, which are no coordinate of it."""
    M, N = dims("M N")
    shared = "(2,2):(1,1) is not injective: indices 1 and 2 both give 1"
    assert Layout((2, 2), (1, 1)).is_injective().explain() == shared
    assert Layout((2, 2), (1, 1)).is_bijective().explain() == shared
    assert injective(Layout((M, N), (1, 1))).explain().endswith("at M=2, N=2: indices 1 and 2 both give 1")
    assert Layout(4, 2).disjoint(Layout(4, 2), 4).explain().endswith("share values: indices 2 and 0 both give 4")


BAD_SWIZZLES: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((3, 4, 2), {}, "3"),  # B > |S|: source and target bits meet, XOR is no permutation of a period
    ((3, 4, -2), {}, "-2"),
    ((-1, 4, 3), {}, "-1"),
    ((3, -4, 3), {}, "-4"),
    ((1, 0, 0), {}, "0"),
    ((3, True, 3), {}, "True"),
    ((3.0, 4, 3), {}, "3.0"),
    ((3, 4, 3), {"unit": 0}, "0"),
    ((3, 4, 3), {"unit": -8}, "-8"),
    ((3, 4, 3), {"unit": "words"}, "words"),
    ((3, 4, 3), {"unit": 2.5}, "2.5"),
    ((3, 4, 3), {"unit": True}, "True"),
]


@pytest.mark.parametrize(("args", "options", "mention"), BAD_SWIZZLES, ids=lambda v: repr(v))
def test_bad_swizzles(args: tuple, options: dict, mention: str) -> None:
    with pytest.raises(LayoutError) as caught:  # a wrong type is the base's, a wrong combination SwizzleError
        Swizzle(*args, **options)
    assert isinstance(caught.value, SwizzleError) or not all(type(x) is int for x in (*args, *options.values()))
    assert mention in str(caught.value)


def test_swizzle_message_shows_the_arithmetic() -> None:
    with pytest.raises(SwizzleError) as caught:
        Swizzle(3, 4, 2)
    text = str(caught.value)
    assert "3" in text and "2" in text and ("B" in text and "S" in text)


BAD_COORDINATES: list[tuple[Layout, Any]] = [
    (Layout((4, 2)), (0, 0, 0)),  # wrong rank
    (Layout((4, 2)), (1,)),
    (Layout((4, 2)), (1, (2, 0))),  # deeper than the shape
    (Layout(4), (1, 2)),
    (Layout((4, (2, 3))), (1, (1, 1, 1))),
    (Layout((4, 2)), (1.5, 0)),
    (Layout((4, 2)), "1"),
    (Layout((4, 2)), (True, 0)),
    (Layout((4, 2)), 1.0),
]


@pytest.mark.parametrize(("layout", "coord"), BAD_COORDINATES, ids=str)
def test_bad_coordinates(layout: Layout, coord: Any) -> None:
    with pytest.raises(CoordinateError) as caught:
        layout(coord)
    # the message shows what was given: the coordinate or the branch of it that is wrong
    text, given = str(caught.value).replace(" ", ""), [coord, *(coord if isinstance(coord, tuple) else ())]
    assert any(repr(c).replace(" ", "") in text for c in given), text


@pytest.mark.parametrize(("layout", "index"), [(Layout((4, 2)), 8), (Layout((4, 2)), -1), (Layout(3), 3)], ids=str)
def test_coordinates_of_indices_outside(layout: Layout, index: int) -> None:
    """coord() is the inverse of a numbering of size() coordinates: outside it there is no answer."""
    with pytest.raises(CoordinateError) as caught:
        layout.coord(index)
    assert str(index) in str(caught.value) and str(layout.shape).replace(" ", "") in str(caught.value)


@pytest.mark.parametrize("pattern", [(0, None, None), (None, (0, None)), (4, None), (-1, None), (None, 1.5)], ids=str)
def test_bad_slices(pattern: Any) -> None:
    with pytest.raises(CoordinateError):
        Layout((4, 2), (2, 1)).slice(pattern)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "4:",
        ":1",
        "(4,2):(1)",
        "(4,2:(1,4)",
        "(4,2):(1,4))",
        "4:1 x",
        "(4,,2):(1,1,4)",
        "(4,a b):(1,4)",
        "4.0:1",
        "0:1",
        "(4,2):(1,4):(1,4)",
        "__import__('os'):1",
        "(4,2)(1,4)",
        "()",
    ],
)
def test_bad_text(text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text)
    assert isinstance(caught.value, ParseError) or text in ("0:1", "(4,2):(1)"), type(caught.value)


@pytest.mark.parametrize("value", [None, 4, b"4:1", ["4:1"]], ids=repr)
def test_parse_wants_text(value: Any) -> None:
    with pytest.raises((LayoutError, TypeError)):
        Layout.parse(value)


BAD_CALLS: list[tuple[str, Callable[[], Any], str]] = [
    ("compose with text", lambda: Layout(4).compose("4:1"), "4:1"),
    ("compose with a float", lambda: Layout(4).compose(2.0), "2.0"),
    ("compose with a bool", lambda: Layout(4).compose(True), "True"),
    ("tiler with too many modes", lambda: Layout((4, 2)).compose((2, 2, 2)), "3"),
    ("tiler of 0", lambda: Layout((4, 2)).logical_divide((0, 2)), "0"),
    ("negative tiler", lambda: Layout((4, 2)).zipped_divide((-2, 2)), "-2"),
    ("complement of bound 0", lambda: Layout(4).complement(0), "0"),
    ("complement of a negative bound", lambda: Layout(4).complement(-8), "-8"),
    ("complement of a float bound", lambda: Layout(4).complement(8.0), "8.0"),
    ("complement of a bool bound", lambda: Layout(4).complement(True), "True"),
    ("complement of a negative stride", lambda: Layout((4, 2), (-1, 4)).complement(16), "-1"),
    ("product by 0", lambda: Layout(4).logical_product(0), "0"),
    ("upcast of a swizzled layout by text", lambda: (Swizzle(1, 0, 3) @ Layout(8)).upcast("2"), "'2'"),
    ("downcast of a swizzled layout by None", lambda: (Swizzle(1, 0, 3) @ Layout(8)).downcast(None), "None"),
    ("32 bits as 6-bit elements", lambda: Layout(4).recast(6, 8), "4:1 from 8 to 6 bits"),
    ("48 bits as 32-bit elements", lambda: Layout(6).recast(32, 8), "6:1 from 8 to 32 bits"),
    ("24 swizzled bits as 16-bit elements", lambda: (Swizzle(1, 4, 3) @ Layout(3)).recast(16, 8), "3:1 from 8 to 16"),
    ("two modes of stride 1", lambda: Layout((4, 4), (1, 1)).recast(8, 16), "4:1 and 4:1 overlap"),
    ("product over coordinates", lambda: Layout(4).logical_product(Layout.identity((2, 2))), "coordinates"),
    ("symbolic product over coordinates", lambda: Layout(dim("M")).logical_product(Layout.identity(2)), "coordinates"),
    ("group modes by text", lambda: Layout((4, 2)).group("0", 2), "'0'"),
    ("upcast by a float", lambda: Layout(4).upcast(2.0), "2.0"),
    ("profile deeper than the layout", lambda: Layout((4, 2)).coalesce((1, (1, 1))), "2"),
    ("profile longer than the layout", lambda: Layout((4, 2)).coalesce((1, 1, 1)), "3"),
    ("order that is no permutation", lambda: Layout.ordered((4, 2), (0, 0)), "(0,0)"),
    ("order of another length", lambda: Layout.ordered((4, 2), (0, 1, 2)), "(0,1,2)"),
    ("with_shape of 0", lambda: Layout((4, 6)).with_shape((0, 24)), "0"),
    ("left inverse of a broadcast", lambda: Layout((4, 2), (0, 1)).left_inverse(), "(4,2):(0,1)"),
    ("left inverse of a collision", lambda: Layout((5, 16), (2, 6)).left_inverse(), "(5,16):(2,6)"),
    ("upcast across elements", lambda: Layout((3, 3), (3, 1)).upcast(2), "3:3"),
    ("negative basis", lambda: E(-1), "-1"),
    ("basis of a float", lambda: E(0.5), "0.5"),
    ("offset that is no int", lambda: ComposedLayout(Swizzle(1, 0, 1), 0.5, Layout(4)), "0.5"),
    ("composed of no layout", lambda: ComposedLayout(Swizzle(1, 0, 1), 0, (4, 1)), "(4,1)"),
    ("composed of no swizzle", lambda: ComposedLayout((1, 0, 1), 0, Layout(4)), "(1,0,1)"),
    ("swizzle of coordinates", lambda: ComposedLayout(Swizzle(1, 0, 1), 0, Layout.identity((4, 4))), "(4,4)"),
]


@pytest.mark.parametrize(("call", "mention"), [pytest.param(c, m, id=i) for i, c, m in BAD_CALLS])
def test_bad_calls(call: Callable[[], Any], mention: str) -> None:
    with pytest.raises((LayoutError, TypeError)) as caught:
        call()
    assert isinstance(caught.value, LayoutError), f"{type(caught.value).__name__}: {caught.value}"
    assert mention.replace(" ", "") in str(caught.value).replace(" ", ""), str(caught.value)


def test_composition_error_carries_everything() -> None:
    a, b = Layout((4, 2), (1, 8)), Layout((2, 2), (1, 3))
    with pytest.raises(CompositionError) as caught:
        a @ b
    error = caught.value
    assert (error.left, error.right) == (a, b)
    assert error.reason and isinstance(error.reason, str)
    text = str(error)
    assert "(4,2):(1,8)" in text and "(2,2):(1,3)" in text, text
    # the arithmetic: A(B(3)) = A(4) = 8, and no layout has it
    assert "3" in text and "4" in text
    # and it survives a process boundary, as an error raised in a worker must
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == text and (twin.left, twin.right, twin.witness) == (a, b, error.witness)


def test_composition_error_names_the_mode() -> None:
    a = Layout((4, 3), (4, 48))
    with pytest.raises(CompositionError) as caught:
        a.compose(Layout((2, 3), (1, 2)))
    assert caught.value.mode == 1
    with pytest.raises(CompositionError) as caught:
        Layout((5, (4, 3)), (1, (4, 48))).compose((5, Layout(3, 2)))
    assert caught.value.mode is not None


def test_error_family() -> None:
    """One base that is a ValueError: `except ValueError` works without our classes."""
    assert issubclass(LayoutError, ValueError)
    for name in ("CompositionError", "SwizzleError", "CoordinateError", "ParseError"):
        assert issubclass(getattr(errors, name), LayoutError)


def test_foreign_operands_give_type_errors() -> None:
    with pytest.raises(LayoutError, match=r"not '4:1' \(str\)"):
        Layout(4) @ "4:1"
    with pytest.raises(TypeError, match="unsupported operand type"):
        Layout(4) + Layout(4)
    assert (Layout(4) == 4) is False
