"""Tiled layouts of XLA and of JAX's Mosaic: the element of each coordinate, thread and value by its own formula."""

from __future__ import annotations

import itertools
import random
from math import prod

import pytest

from layoutgemm import Layout, Swizzle, parse, prove, wgmma
from layoutgemm.errors import ParseError


def place(index: tuple[int, ...], shape: list[int], order: list[int], tiles: list[tuple[int, ...]]) -> int:
    """XLA's element of a coordinate: split coordinates and sizes tile by tile, then count rows of the rest."""
    at, sizes = [index[d] for d in reversed(order)], [shape[d] for d in reversed(order)]
    for tile in tiles:
        n = len(tile)
        quotients = [i // t for i, t in zip(at[-n:], tile, strict=True)]
        rest = [i % t for i, t in zip(at[-n:], tile, strict=True)]
        whole = [(size + t - 1) // t for size, t in zip(sizes[-n:], tile, strict=True)]
        at, sizes = at[:-n] + quotients + rest, sizes[:-n] + whole + list(tile)
    offset = 0
    for i, size in zip(at, sizes, strict=True):
        offset = offset * size + i
    return offset


XLA = [
    ("f32[8,128]{1,0:T(8,128)}", [8, 128], [1, 0], [(8, 128)]),
    ("f32[16,256]{1,0:T(8,128)}", [16, 256], [1, 0], [(8, 128)]),
    ("f32[16,256]{0,1:T(8,128)}", [16, 256], [0, 1], [(8, 128)]),
    ("bf16[16,256]{1,0:T(8,128)(2,1)}", [16, 256], [1, 0], [(8, 128), (2, 1)]),
    ("s8[64,256]{1,0:T(8,128)(4,1)S(1)}", [64, 256], [1, 0], [(8, 128), (4, 1)]),
    ("bf16[4096]{0:T(1024)(128)(2,1)}", [4096], [0], [(1024,), (128,), (2, 1)]),
    ("%fusion.1 = bf16[2,512]{1,0:T(4,128)(2,1)S(1)} fusion(%param)", [2, 512], [1, 0], [(4, 128), (2, 1)]),
    ("ROOT %copy = f32[3,5]{1,0:T(8,128)} copy(f32[3,5]{0,1} %p)", [3, 5], [1, 0], [(8, 128)]),
    ("f32[10,128]{1,0:T(8,128)}", [10, 128], [1, 0], [(8, 128)]),
    ("f32[2,3,4]{1,2,0}", [2, 3, 4], [1, 2, 0], []),
    ("f32[4,8]{1,0:S(5)}", [4, 8], [1, 0], []),
    ("u4[64,64]{1,0:T(8,16)E(4)L(512)}", [64, 64], [1, 0], [(8, 16)]),
    ("bf16[5,16,256]{2,1,0:T(8,128)(2,1)}", [5, 16, 256], [2, 1, 0], [(8, 128), (2, 1)]),
]


@pytest.mark.parametrize(("text", "shape", "order", "tiles"), XLA)
def test_an_xla_shape_is_the_padded_array(
    text: str, shape: list[int], order: list[int], tiles: list[tuple[int, ...]]
) -> None:
    found = parse(text)
    assert isinstance(found, Layout) and [mode.size for mode in found] == shape
    for index in itertools.product(*map(range, shape)):
        assert found(*index) == place(index, shape, order, tiles), index


def test_random_xla_shapes_are_right_or_refused() -> None:
    rng, read = random.Random(4), 0
    for _ in range(300):
        rank = rng.randint(1, 3)
        shape, order = [rng.choice([1, 2, 3, 4, 8, 8, 16]) for _ in range(rank)], list(range(rank))
        rng.shuffle(order)
        tiles: list[tuple[int, ...]] = []
        width = rank
        for _ in range(rng.randint(1, 3)):
            tiles.append(tuple(rng.choice([1, 2, 2, 4, 4, 8, 3]) for _ in range(rng.randint(1, width))))
            width += len(tiles[-1])
        said = "".join("(" + ",".join(map(str, tile)) + ")" for tile in tiles)
        text = f"f32[{','.join(map(str, shape))}]{{{','.join(map(str, order))}:T{said}}}"
        try:
            found = parse(text)
        except ParseError as error:
            assert "expected" in str(error)
            continue
        read += 1
        for index in itertools.product(*map(range, shape)):
            assert found(*index) == place(index, shape, order, tiles), text

    assert read > 100


def test_tiles_of_a_tpu_have_strides_of_whole_tiles() -> None:
    found = parse("memref<16x256xbf16, #tpu.tiled<(8,128)(2,1),[1,2]>, #tpu.memory_space<vmem>>")
    for i, j in itertools.product(range(16), range(256)):
        inside = place((i % 8, j % 128), [8, 128], [1, 0], [(2, 1)])
        assert found(i, j) == 1024 * (i // 8 + 2 * (j // 128)) + inside


TILED = (
    "TiledLayout(tiling=Tiling(tiles=((64, 8), (16, 8), (8, 8), (2,))), warp_dims=(-7,), lane_dims=(-3, -2),"
    " vector_dim=-1)"
)


def test_mosaic_has_the_accumulator_of_wgmma() -> None:
    accumulator = wgmma(8).layout_C
    for text in (
        TILED,
        "Layout.WGMMA",
        "plgpu.Layout.WGMMA",
        "<Layout.WGMMA: 1>",
        "WGMMA_LAYOUT",
        "layout = TiledLayout(Tiling(((64, 8), (16, 8), (8, 8), (1, 2))), (-8,), lane_dims=(-4, -3), vector_dim=-1)",
        "#mosaic_gpu.TiledLayout<[[64 : i32, 8], [16, 8], [8, 8], [2]], warp_dims = [-7], lane_dims = [-3, -2],"
        " vector_dim = -1>",
    ):
        assert prove(parse(text), accumulator).ok, text


# (name or text, tile, (thread, value) -> (row, column))
REGISTERS = [
    ("Layout.TCGEN05", (128, 8), lambda t, v: (t // 32 * 32 + t % 32 // 4 + 8 * (v // 2), t % 4 * 2 + v % 2)),
    ("TMEM_NATIVE_LAYOUT", (128, 2), lambda t, v: (t, v)),
    ("WGMMA_ROW_LAYOUT", (64, 1), lambda t, v: (t // 32 * 16 + t % 32 // 4 + 8 * v, 0)),
    ("WGMMA_COL_LAYOUT", (1, 8), lambda t, v: (0, t % 4 * 2 + v)),
    ("Layout.WGMMA_8BIT", (64, 16), lambda t, v: (t // 32 * 16 + t % 32 // 4 + 8 * (v // 4), t % 4 * 4 + v % 4)),
    ("Layout.TMA_INDICES", (1, 16), lambda t, v: (0, t // 32 * 4 + v)),
    ("Layout.WGMMA_UPCAST_4X", (64, 32), lambda t, v: (t // 32 * 16 + t % 32 // 4 + 8 * (v // 8), t % 4 * 8 + v % 8)),
    (
        "Layout.WGMMA_UPCAST_2X",
        (64, 16),
        lambda t, v: (t // 32 * 16 + t % 32 // 4 + 8 * (v // 4), t % 2 * 8 + t // 2 % 2 * 4 + v % 4),
    ),
    (
        "#mosaic_gpu.TiledLayout<[[64], [16], [8], [1]], warp_dims = [-4],"
        " lane_dims = [-2, #mosaic_gpu.Replicated<times = 4>], vector_dim = -1>",
        (64, 1),
        lambda t, v: (t // 32 * 16 + t % 32 // 4 + 8 * v, 0),
    ),
]


@pytest.mark.parametrize(("text", "tile", "where"), REGISTERS)
def test_registers_of_mosaic(text: str, tile: tuple[int, int], where) -> None:
    found = parse(text)
    assert found[0].size == 128
    for thread, value in itertools.product(range(128), range(found[1].size)):
        row, column = where(thread, value)
        assert found(thread, value) == row + tile[0] * column, (thread, value)


def test_transposed_registers_swap_rows_and_columns_of_two_by_two() -> None:
    """The lanes of the first 8 x 8 elements, as JAX's comment on WGMMA_TRANSPOSED_LAYOUT draws them."""
    found = parse("Layout.WGMMA_TRANSPOSED")
    lanes = {found(thread, value): thread for thread in range(32) for value in range(found[1].size)}
    drawn = ["04152637", "04152637", "8C9DAEBF", "8C9DAEBF"]
    for row, line in enumerate(drawn):
        assert [lanes[row + 64 * column] for column in range(8)] == [int(lane, 16) for lane in line]


def test_strided_fragments_take_rows_in_vectors() -> None:
    for text in ("WGStridedFragLayout(shape=(8, 64), vec_size=2)", "#mosaic_gpu.WGStridedFragLayout<[8, 64], 2>"):
        found = parse(text)
        for thread, value in itertools.product(range(128), range(4)):
            index = 2 * thread + value % 2 + 256 * (value // 2)
            assert found(thread, value) == index // 64 + 8 * (index % 64)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("SwizzleTransform(swizzle=128)", Swizzle(3, 4, 3, "bytes")),
        ("plgpu.SwizzleTransform(64)", Swizzle(2, 4, 3, "bytes")),
        ("#mosaic_gpu.swizzle<32>", Swizzle(1, 4, 3, "bytes")),
    ],
)
def test_a_swizzle_transform_counts_bytes(text: str, right: Swizzle) -> None:
    assert parse(text) == right


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("f32[8,128]", 10, "the order of the dimensions, as in {1,0}"),
        ("f32[8,128]{1,1}", 11, "an order of 2 dimensions"),
        ("f32[3,5]{1,0:T(2,2)}", 4, "as 4 for 3"),
        ("f32[8,128]{1,0:D(D,C)}", 15, "tiles or a memory space"),
        ("f32[8]{0:T(8,128)}", 8, "a tile of 1 to 1 extents"),
        ("f32[8,0]{1,0}", 4, "extents from 1"),
        ("Layout(major_to_minor=(0, 1), tiling=((8, 128),))", 0, "the array's shape too"),
        ("TilingTransform(tiling=(8, 64))", 0, "f16[64,64]{1,0:T(8,64)}"),
        ("#mosaic_gpu.tile<8,64>", 12, "not a change of an array's shape"),
        ("SwizzleTransform(48)", 17, "32, 64 or 128 bytes"),
        ("WGSplatFragLayout(shape=(64, 64))", 0, "every thread holds the same value"),
        ("WGStridedFragLayout(shape=(64, 3), vec_size=2)", 0, "a multiple of 256 elements"),
        (TILED.replace("-7", "-6"), 0, "warp_dims with 4 in all, not 1"),
        (TILED.replace("-7", "-3"), 0, "each once, not -3"),
        (TILED.replace("(8, 8)", "(9, 8)"), 0, "a tile that divides the one before it"),
        (TILED.replace("-7", "x"), TILED.index("-7"), "an integer, or a tuple of them"),
        ("memref<16x256xbf16, #tpu.tiled<(8,128),[1]>>", 40, "2 strides of tiles, not 1"),
        ("memref<4x8xf16, #map>", 16, "the line above it that says #map"),
        ("affine_map<(i, j) -> (i * 8 + j)>", 0, "a map without extents"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, position: int, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value) and error.value.position == position


def test_a_named_map_stands_for_its_text() -> None:
    found = parse("#map = affine_map<(d0, d1) -> (d0 + d1 * 4)>\nmemref<4x8xf32, #map, 3>")
    assert str(found) == "(4,8):(1,4)"


def test_extents_and_tiles_of_one_are_left_out() -> None:
    assert prod(parse("f32[1,1]{1,0:T(8,128)}").shape) == 1
    assert str(parse("f32[4,8]{1,0:T(1,1)}")) == "(4,8):(8,1)"
