"""Verdicts say what the operations do, and CuTe's function names are the methods."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import layoutgemm
import layoutgemm.layouts as cute
from layoutgemm.errors import CoordinateError, LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from tests.layouts import reference as ref
from tests.layouts.strategies import inside, random_pair


def image(layout: Any) -> list[int]:
    return [layout(i) for i in range(layout.size)]


# Verdicts: (predicate, operation, arguments) --------------------------------------------------------------------------


def questions(rng: random.Random) -> list[tuple[str, str, Layout, tuple]]:
    pair = random_pair(rng, limit=120, leaves=3)
    a, b = Layout(*pair), Layout(*inside(rng, pair))
    n = rng.choice((1, 2, 3, 4, 6))
    return [
        ("can_compose", "compose", a, (b,)),
        ("can_complement", "complement", a, (rng.randint(1, 200),)),
        ("can_left_inverse", "left_inverse", a, ()),
        ("can_divide", "logical_divide", a, (b,)),
        ("can_product", "logical_product", a, (b,)),
        ("can_upcast", "upcast", a, (n,)),
        ("can_downcast", "downcast", a, (n,)),
        ("can_recast", "recast", a, (8 * n, 16)),
        ("can_with_shape", "with_shape", a, ((n, a.size // n) if a.size % n == 0 else (n, 1),)),
        ("can_tile_to_shape", "tile_to_shape", a, (tuple(ref.size(s) * n for s in ref.modes(a.shape)),)),
        ("can_tile_to_shape", "tile_to_shape", a, (tuple(ref.size(s) + 1 for s in ref.modes(a.shape)),)),
    ]


def test_verdicts_foretell_the_operation() -> None:
    """A predicate is truthy exactly where the operation answers. Otherwise it has the operation's reason."""
    rng = random.Random(12)
    outcomes: Counter[tuple[str, bool]] = Counter()
    for _ in range(250):
        for predicate, operation, layout, args in questions(rng):
            verdict = getattr(layout, predicate)(*args)
            assert bool(verdict) == verdict.ok
            try:
                getattr(layout, operation)(*args)
            except LayoutError as error:
                assert not verdict, f"{layout}.{predicate}{args} said yes; {operation}: {error}"
                assert verdict.reason == str(error) and verdict.witness == error.witness
            else:
                assert verdict, f"{layout}.{predicate}{args} said no: {verdict.reason}"
            outcomes[predicate, verdict.ok] += 1
    for predicate in ("compose", "complement", "left_inverse", "divide", "product", "upcast", "tile_to_shape"):
        assert outcomes["can_" + predicate, True] > 20 and outcomes["can_" + predicate, False] > 5, outcomes


def test_injective_names_two_coordinates() -> None:
    """A collision is a value: two coordinates with one offset."""
    rng = random.Random(13)
    found = 0
    for _ in range(400):
        pair = random_pair(rng, limit=150)
        layout, values = Layout(*pair), ref.image(*pair)
        verdict = layout.is_injective()
        if verdict:
            continue
        found += 1
        first, second = verdict.coord if isinstance(verdict.coord, tuple) else (verdict.coord, verdict.index)
        assert first != second and values[first] == values[second]
        assert verdict.left == verdict.right == values[first]
    assert found > 100


def test_a_path_leads_to_a_mode() -> None:
    assert (cute.get(A, [1, 0]), cute.size(A, mode=[1]), cute.cosize(A, [1]), cute.rank(A, [1])) == (A[1][0], 24, 24, 2)
    assert cute.get(A.shape, [1, 1]) == 6 and cute.get(A, []) is A and cute.size(8, [0]) == 8
    for x, path in ((A, [2]), (A.shape, [2]), (A, [-1]), (A, 1), (8, [1]), (cute.LinearLayout((1, 2)), [0])):
        with pytest.raises(LayoutError):
            cute.get(x, path)


# Free functions -------------------------------------------------------------------------------------------------------

METHODS = {
    "composition": "compose",
    "complement": "complement",
    "logical_divide": "logical_divide",
    "zipped_divide": "zipped_divide",
    "tiled_divide": "tiled_divide",
    "flat_divide": "flat_divide",
    "logical_product": "logical_product",
    "zipped_product": "zipped_product",
    "tiled_product": "tiled_product",
    "flat_product": "flat_product",
    "blocked_product": "blocked_product",
    "raked_product": "raked_product",
    "coalesce": "coalesce",
    "filter": "filter",
    "flatten": "flatten",
    "right_inverse": "right_inverse",
    "left_inverse": "left_inverse",
    "nullspace": "nullspace",
    "upcast": "upcast",
    "downcast": "downcast",
    "max_common_vector": "max_common_vector",
    "max_common_layout": "max_common_layout",
    "tile_to_shape": "tile_to_shape",
    "with_shape": "with_shape",
}
A, B = Layout((8, (4, 6)), (24, (6, 1))), Layout((2, 3), (3, 1))
ARGUMENTS: dict[str, tuple] = {
    "composition": (Layout((4, 3), (2, 8)),),
    "complement": (400,),
    "upcast": (2,),
    "downcast": (2,),
    "max_common_vector": (A,),
    "max_common_layout": (A,),
    "tile_to_shape": ((16, 48),),
    "with_shape": ((8, 24),),
    **{k: ((2, 4),) for k in METHODS if k.endswith("_divide")},
    **{k: (B,) for k in METHODS if k.endswith("_product")},
}


@pytest.mark.parametrize("name", METHODS)
def test_function_is_the_method(name: str) -> None:
    args = ARGUMENTS.get(name, ())
    assert getattr(cute, name)(A, *args) == getattr(A, METHODS[name])(*args)


def test_functions_of_shapes_and_layouts() -> None:
    assert cute.size(A) == A.size == 192 and cute.size((8, (4, 6))) == 192
    assert (cute.cosize(A), cute.rank(A), cute.depth(A)) == (A.cosize, 2, 2)
    assert (cute.rank((8, (4, 6))), cute.depth((8, (4, 6))), cute.rank(7), cute.depth(7)) == (2, 2, 1, 0)
    assert (cute.shape(A), cute.stride(A)) == (A.shape, A.stride)
    assert cute.product((2, (3, 4))) == 24 and cute.product_each((2, (3, 4))) == (2, 12)
    assert cute.flatten((2, (3, (4,)))) == (2, 3, 4)
    assert cute.make_layout((4, 2)) == Layout((4, 2))
    assert cute.make_layout((4, 2), stride=(2, 1)) == Layout((4, 2), (2, 1))
    assert cute.make_layout(Layout(4), B) == Layout((4, (2, 3)), (1, (3, 1))) == Layout.join(Layout(4), B)
    assert cute.make_identity_layout((4, 8)) == Layout.identity((4, 8))
    assert cute.make_ordered_layout((4, 8), (1, 0)) == Layout((4, 8), (8, 1))
    assert cute.append(B, Layout(5, 6)) == Layout((2, 3, 5), (3, 1, 6))
    assert cute.prepend(B, Layout(5, 6)) == Layout((5, 2, 3), (6, 3, 1))
    assert cute.select(Layout((2, 3, 5), (3, 1, 6)), (2, 0)) == Layout((5, 2), (6, 3))
    assert cute.group_modes(Layout((2, 3, 5), (3, 1, 6)), 1, 3) == Layout((2, (3, 5)), (3, (1, 6)))
    assert cute.recast_layout(8, 16, B) == B.recast(8, 16)
    assert cute.slice_((1, None), A) == A.slice((1, None))[0] and cute.slice_and_offset((1, None), A)[1] == 24
    assert cute.dice((1, None), A) == A.dice((1, None))
    assert cute.make_swizzle(3, 4, 3, "bytes") == Swizzle(3, 4, 3, unit=8)
    assert cute.make_composed_layout(Swizzle(1, 0, 1), 2, B) == ComposedLayout(Swizzle(1, 0, 1), 2, B)


def test_local_tile_is_what_cute_prints() -> None:
    """The three projections of NVIDIA/cutlass issue 1745."""
    matrix, tiler, coord = Layout((5120, 4096), (1, 5120)), (32, 64, 4), (0, 0, None)
    for proj, printed in (
        ((1, None, 1), "(_32,_4,1024):(_1,5120,20480)"),
        ((None, 1, 1), "(_64,_4,1024):(_1,5120,20480)"),
        ((1, 1, None), "(_32,_64):(_1,5120)"),
    ):
        assert cute.local_tile(matrix, tiler, coord, proj) == (cute.parse(printed), 0)


@pytest.mark.parametrize(("m", "n"), [(8, 6), (12, 6)])
def test_local_tile_and_local_partition_are_slices_of_the_matrix(m: int, n: int) -> None:
    matrix = Layout((m, n, 2), (n, 1, m * n))
    for row, column in ((0, 0), (1, 2), (m // 4 - 1, 1)):
        tile, first = cute.local_tile(matrix, (4, 2), (row, column))
        for i, j, k in ((0, 0, 0), (3, 1, 1), (2, 0, 1)):
            assert first + tile(i, j, k) == matrix(4 * row + i, 2 * column + j, k)
    threads = Layout((2, 3), (3, 1))
    for index in range(6):
        part, first = cute.local_partition(matrix, threads, index)
        for i, j, k in ((0, 0, 0), (m // 2 - 1, 1, 1), (1, 0, 1)):
            assert first + part(i, j, k) == matrix(index // 3 + 2 * i, index % 3 + 3 * j, k)
    line, first = cute.local_partition(Layout(64), Layout(8), 3)
    assert [first + line(i) for i in range(8)] == list(range(3, 64, 8))
    tile, first = cute.local_tile(Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1)), (8, 64), (1, 0))
    assert first == 0 and tile(2, 5) == (Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1)))(10, 5)
    for wrong, said in (
        (lambda: cute.local_tile(matrix, (4, 2), (m, 0)), f"coordinate {m} is outside"),
        (lambda: cute.local_tile(matrix, (4, 2, 1), (0, 0, 0), (1, None)), "two tuples of one length"),
        (lambda: cute.local_partition(matrix, threads, 6), r"no coordinate of \(2,3\):\(3,1\) has the value 6"),
    ):
        with pytest.raises(LayoutError, match=said):
            wrong()


def test_congruent_and_compatible() -> None:
    assert cute.congruent((1, (2, 3)), (7, (8, 9))) and not cute.congruent((1, (2, 3)), (1, 2, 3))
    assert cute.weakly_congruent((1, 2), (1, (2, 3))) and not cute.weakly_congruent((1, (2, 3)), (1, 2))
    assert cute.compatible(24, (2, 12)) and cute.compatible((2, 12), (2, (3, 4)))
    assert not cute.compatible((2, 12), (2, (3, 5))) and not cute.compatible((2, (3, 4)), (2, 12))
    assert not cute.compatible((2, 12), (4, 6))


def test_coordinate_functions() -> None:
    """crd2idx and idx2crd over shapes, compact by default; an inner coordinate may be one flat index of its mode."""
    rng = random.Random(14)
    for _ in range(200):
        shape, stride = random_pair(rng, limit=200)
        i = rng.randrange(ref.size(shape))
        coord = ref.coordinate(i, shape)
        assert cute.crd2idx(coord, shape) == i == cute.crd2idx(i, shape)
        assert cute.crd2idx(coord, shape, stride) == cute.crd2idx(i, shape, stride) == ref.offset(i, shape, stride)
        assert cute.idx2crd(i, shape) == coord
        if isinstance(shape, tuple):
            half = tuple(ref.flat_index(c, s) for c, s in zip(coord, shape, strict=True))
            assert cute.idx2crd(half, shape) == coord
    for bad in ((1, 2, 3), (1, (2, 0)), (1,)):
        with pytest.raises(CoordinateError):
            cute.idx2crd(bad, (4, 3))


def test_parse_tells_kinds_apart() -> None:
    for value in (
        B,
        Swizzle(3, 4, 3),
        Swizzle(2, 3, -3),
        Swizzle(3, 4, 3, "bytes"),
        Swizzle(3, 3, 3, 16),
        Layout.identity((4, 2)),
        ComposedLayout(Swizzle(3, 3, 3), 64, A),
        ComposedLayout(Swizzle(3, 3, 3, 16), 0, A),
        Layout((4, 2), (3, -1)),
    ):
        assert cute.parse(str(value)) == value
        assert type(value).parse(str(value)) == value
    assert cute.parse("S<3,4,3> o x o 4:1") == ComposedLayout(Swizzle(3, 4, 3), layoutgemm.dim("x"), Layout(4))
    for text in ("S<3,4>", "S<3,4,2>", "S<3,4,3>[words]", "S<3,4,3> o 0", "S<3,4,3> o x y o 4:1"):
        with pytest.raises(LayoutError):
            cute.parse(text)


def test_package_exports_the_algebra() -> None:
    """The names are at the top of the package too; every name of __all__ exists."""
    for name in cute.__all__:
        assert hasattr(cute, name)
    for name in ("Layout", "Swizzle", "ComposedLayout", "E"):
        assert getattr(layoutgemm, name) is getattr(cute, name)


def test_layouts_iterate_over_modes() -> None:
    assert len(A) == 2 and list(A) == [A[0], A[1]]
    assert [m.size for m in Layout(7)] == [7]
