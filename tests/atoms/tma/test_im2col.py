"""im2col loads against a NumPy im2col that knows no tensor map; the rules."""

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import Layout, Swizzle
from layoutgemm.atoms import smem_tile, tma_im2col
from layoutgemm.atoms.tma.im2col import Im2colMap, base_pixels, broken_rules, global_bits, load
from layoutgemm.dtypes import dtype
from layoutgemm.errors import TmaError

ELEMENTS = {"e4m3": np.uint8, "bf16": np.uint16, "f32": np.uint32}


def convolution_matrix(images, filter, padding, stride, dilation):
    """A by padding and slicing: rows are output pixels, columns [taps..., channel], the last tap axis fastest."""
    spatial = images.ndim - 2
    padded = np.pad(images, [(0, 0), *padding, (0, 0)])
    parts = []
    for tap in np.ndindex(*filter[::-1]):
        tap = tap[::-1]
        where = []
        for axis in range(spatial):
            first = tap[axis] * dilation[axis]
            room = padded.shape[axis + 1] - (filter[axis] - 1) * dilation[axis]
            where.append(slice(first, first + room, stride[axis]))
        parts.append((tap, padded[(slice(None), *where)].reshape(-1, images.shape[-1])))
    # taps in the order W fastest: the last spatial axis
    parts.sort(key=lambda part: part[0])
    return [columns for _, columns in parts]


def images_of(shape, kind, pitch=0):
    """Distinct words in memory with `pitch` further channels behind each pixel."""
    memory = np.arange(1, np.prod(shape[:-1]) * (shape[-1] + pitch) + 1).astype(ELEMENTS[kind])
    strides = [1, shape[-1] + pitch]
    for extent in shape[-2:0:-1]:
        strides.append(strides[-1] * extent)
    return memory, memory.reshape(*shape[:-1], shape[-1] + pitch)[..., : shape[-1]], Layout(shape, tuple(strides[::-1]))


CASES = {
    # spatial rank 1, 2, 3; (shape, type, pitch, shared tile, filter, padding, stride, dilation)
    "conv1d": ((3, 21, 32), "bf16", 0, smem_tile((32, 32), "bf16", "K"), (5,), ((2, 2),), (1,), (1,)),
    "conv1d, stride 3, padding on one side": (
        (2, 20, 64), "bf16", 0, smem_tile((16, 64), "bf16", "K"), (4,), ((3, 0),), (3,), (1,)),
    "3x3": ((2, 7, 9, 64), "bf16", 0, smem_tile((64, 64), "bf16", "K"), (3, 3), ((1, 1),) * 2, (1, 1), (1, 1)),
    "3x3, stride 2, dilation 2, ragged channels": (
        (2, 9, 11, 40), "bf16", 8, smem_tile((32, 64), "bf16", "K"), (3, 3), ((2, 2),) * 2, (2, 2), (2, 2)),
    "2x3 without padding, two spans of channels": (
        (1, 6, 8, 128), "bf16", 0, smem_tile((16, 128), "bf16", "K"), (2, 3), ((0, 0),) * 2, (1, 2), (1, 1)),
    "a row-major tile without swizzle": (
        (2, 5, 6, 16), "f32", 0, Layout((24, 16), (16, 1)), (3, 1), ((1, 0), (0, 0)), (2, 1), (1, 1)),
    "bytes, swizzle 32B": (
        (2, 6, 7, 96), "e4m3", 0, smem_tile((40, 32), "e4m3", "K"), (2, 2), ((1, 1),) * 2, (1, 1), (3, 2)),
    "conv3d": (
        (2, 4, 5, 6, 32), "bf16", 0, smem_tile((24, 32), "bf16", "K"), (2, 3, 3), ((0, 1), (1, 1), (1, 1)),
        (1, 2, 1), (1, 1, 2)),
    "more rows than a box: two columns of pixels": (
        (2, 14, 15, 8), "f32", 0, Layout((320, 8), (8, 1)), (3, 3), ((1, 1),) * 2, (1, 1), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tiles_are_those_of_a_numpy_im2col(case):
    shape, kind, pitch, smem, filter, padding, stride, dilation = case
    memory, images, gmem = images_of(shape, kind, pitch)
    plan = tma_im2col(gmem, smem, kind, filter=filter, padding=padding, stride=stride, dilation=dilation)
    wanted = convolution_matrix(images, filter, padding, stride, dilation)
    rows, columns = plan.tile
    composed = getattr(smem, "composed", smem)
    at = np.array([[int(composed(i, j)) for j in range(columns)] for i in range(rows)])
    assert plan.grid == (-(-len(wanted[0]) // rows), len(wanted) * -(-shape[-1] // columns))
    base = 4096
    for number in np.ndindex(*plan.grid):
        shared = np.full(1 << 17, 0xEE, np.uint8)
        copies = plan.copies(number)
        moved = sum(
            load(plan.tensor_map, memory.view(np.uint8), c.coordinates, c.offsets, shared, base + c.smem_offset)
            for c in copies
        )
        assert moved == plan.bytes == rows * columns * memory.itemsize
        got = shared[base:].view(memory.dtype)[at]
        channel, tap = plan.tap(number[1])
        parts = wanted[np.ravel_multi_index(tap[::-1], filter)]
        whole = np.zeros((plan.grid[0] * rows, -(-shape[-1] // columns) * columns), memory.dtype)
        whole[: len(parts), : shape[-1]] = parts
        assert (got == whole[number[0] * rows :][:rows, channel : channel + columns]).all(), number


def test_landing_is_what_the_load_does():
    memory, _, gmem = images_of((2, 7, 9, 64), "bf16")
    plan = tma_im2col(gmem, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1)
    shared = np.zeros(1 << 14, np.uint8)
    (copy,) = plan.copies((0, 0))
    load(plan.tensor_map, memory.view(np.uint8), copy.coordinates, copy.offsets, shared, 1024)
    ((source, inside, target),) = plan.landing((0, 0), 1024)
    assert (shared.view(np.uint16)[target // 16] == np.where(inside, memory[source // 16], 0)).all()
    assert not inside[:, :10].any() and inside[:, 10].all()  # the first row of pixels and a left edge are padding


def test_base_pixels_walk_the_box_by_hand():
    tmap = Im2colMap(dtype("bf16"), (8, 9, 7, 3), (16, 144, 1008), (-1, 0), (-1, -2), 8, 50, (1, 2, 3, 1))
    w, h, n = -1, 3, 1
    seen = []
    for _ in range(50):
        seen.append((w, h, n))
        w += 2
        if w > 9 - 1 - 1:
            w, h = -1, h + 3
        if h > 7 - 1 - 2:
            h, n = 0, n + 1
    assert list(zip(*(axis.tolist() for axis in base_pixels(tmap, (0, -1, 3, 1))))) == seen
    assert seen[-1][2] > 2  # beyond the last image: out of bounds
    assert not global_bits(tmap, (0, -1, 3, 1), (0, 0))[1][:, -1].any()


GOOD = Im2colMap(dtype("bf16"), (64, 9, 7, 2), (128, 1152, 8064), (-1, -1), (-1, -1), 64, 64, (1, 1, 1, 1), "128B")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"extents": (64, 9), "strides": (128,)}, "im2col rank"),
        ({"extents": (64, 9, 7, 2, 2, 2)}, "im2col rank"),
        ({"lower": (-1,)}, "im2col rank"),
        ({"lower": (-129, 0)}, "corner"),
        ({"upper": (0, 128)}, "corner"),
        ({"lower": (5, 0), "upper": (-4, 0)}, "pixel box"),
        ({"pixels": 0}, "pixels"),
        ({"pixels": 1025}, "pixels"),
        ({"channels": 257, "swizzle": "none"}, "box"),
        ({"channels": 12, "swizzle": "none"}, "inner bytes"),
        ({"swizzle": "64B"}, "span"),
        ({"steps": (1, 9, 1, 1)}, "step"),
        ({"steps": (1, 1, 1, 2)}, "step"),
        ({"strides": (120, 1152, 8064)}, "stride"),
        ({"extents": (64, 9, 0, 2)}, "extent"),
        ({"dtype": dtype("i32"), "channels": 32, "oob_fill": "nan"}, "fill"),
    ],
)
def test_each_rule_refuses_its_map(changes, rule):
    assert not list(broken_rules(GOOD))
    assert rule in [fault.rule.name for fault in broken_rules(replace(GOOD, **changes))]


def test_corners_by_rank():
    for rank, reach in ((3, 1 << 15), (4, 1 << 7), (5, 1 << 4)):
        spatial = rank - 2
        tmap = Im2colMap(dtype("f32"), (4, *(1 << 17,) * spatial, 2), (16,) * (rank - 1), (-reach,) * spatial,
                         (reach - 1,) * spatial, 4, 1024, (1,) * rank)  # fmt: skip
        assert not list(broken_rules(tmap))
        for changes in ({"lower": (-reach - 1,) * spatial}, {"upper": (reach,) * spatial}):
            assert {fault.rule.name for fault in broken_rules(replace(tmap, **changes))} == {"corner"}


TILE = smem_tile((64, 64), "bf16", "K")


@pytest.mark.parametrize(
    ("gmem", "smem", "options", "rule", "said"),
    [
        (Layout((2, 7, 9, 64), (4032, 576, 64, 1)), TILE, {"filter": (3, 3, 3)}, "tile", "2 spatial modes"),
        (Layout((2, 7, 9, 64), (4032, 576, 64, 1)), TILE, {"filter": (8, 3)}, "pixel box", "8 taps along H"),
        (Layout((2, 7, 9, 64), (4032, 576, 64, 1)), TILE, {"filter": 3, "stride": 9}, "step", "steps of 9"),
        (Layout((2, 7, 9, 64), (4032, 576, 64, 1)), TILE, {"filter": 3, "padding": -1}, "tile", "got -1"),
        (Layout((2, 400, 400, 64), (400 * 400 * 64, 25600, 64, 1)), TILE, {"filter": 3, "dilation": 128},
         "corner", "upper corner of W is -256"),
        (Layout((2, 400, 400, 64), (400 * 400 * 64, 25600, 64, 1)), TILE,
         {"filter": 3, "dilation": 128, "padding": (128, 128)}, "offset", "256 pixels off"),
        (Layout((7, 64), (64, 1)), TILE, {"filter": 1}, "im2col rank", "3 to 5 modes"),
        (Layout((2, 9, 64), (576, 1, 9)), TILE, {"filter": 1}, "contiguous", "9 elements apart"),
        (Layout((2, 9, 60), (540, 60, 1)), TILE, {"filter": 1}, "stride", "120 bytes"),
        (Layout((2, 9, 64), (576, 64, 1)), Layout((64, 64), (1, 64)), {"filter": 1}, "run", "does not transpose"),
        (Layout((2, 9, 64), (576, 64, 1)), Swizzle(3, 4, 3) @ Layout((64, 64), (64, 1)), {"filter": 1}, "swizzle", ""),
    ],
)  # fmt: skip
def test_bad_convolutions_are_refused_by_name(gmem, smem, options, rule, said):
    with pytest.raises(TmaError) as caught:
        tma_im2col(gmem, smem, "bf16", **options)
    assert caught.value.rule == rule and said in str(caught.value)


@pytest.mark.parametrize(
    ("coordinates", "offsets", "rule"),
    [
        ((0, -2, 0, 0), (0, 0), "first pixel"),
        ((0, 8, 0, 0), (0, 0), "first pixel"),
        ((4, 0, 0, 0), (0, 0), "coordinate"),
        ((0, 0, 0, 0), (256, 0), "offset"),
        ((0, 0, 0, 0), (0, -1), "offset"),
        ((0, 0, 0, 0), (0,), "offset"),
        ((0, 0, 0), (0, 0), "rank"),
    ],
)
def test_bad_instructions_are_refused_by_name(coordinates, offsets, rule):
    with pytest.raises(TmaError) as caught:
        global_bits(GOOD, coordinates, offsets)
    assert caught.value.rule == rule


def test_the_driver_gets_corners_instead_of_a_box():
    said = GOOD.encode_arguments()
    assert "boxDim" not in said and said["globalDim"] == (64, 9, 7, 2) and said["globalStrides"] == (128, 1152, 8064)
    assert said["pixelBoxLowerCorner"] == (-1, -1) and said["channelsPerPixel"] == said["pixelsPerColumn"] == 64
    assert said["swizzle"] == 3 and said["elementStrides"] == (1, 1, 1, 1)
