"""Textures and surfaces by kernels: each sample against CUDA's formulas written out, nvcc's forms, and refusals."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.api import TextureOf, emulate_ptx
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.run_ptx import module
from tests.micro.textures import array_of, drawn, kernel_of

RANDOM = np.random.default_rng(20261129)
HEAD = "mov.u32 %r31, %tid.x; mul.wide.u32 %d31, %r31, 16; add.s64 %d30, %o, %d31;"


def kernel(body: str, names: dict[str, str]) -> str:
    return module(HEAD + body, {"t": "u64", "o": "u64", **names}, "sm_90", shared=False)


def fetched(texture: TextureOf, points: np.ndarray, kind: str, layers: np.ndarray | None = None, of: str = "f32",
            what: str = "tex.{}.v4") -> np.ndarray:  # fmt: skip
    """[32, 4] of one fetch a lane, at points [32, dimensions]."""
    given = [np.ascontiguousarray(points[:, n]).astype("f4" if of == "f32" else "i4") for n in range(points.shape[1])]
    given += [layers] if texture.layered else []
    result = np.zeros((32, 4), np.float32 if kind == "f32" else np.int32 if kind == "s32" else np.uint32)
    done = emulate_ptx(kernel_of(texture, kind, of, what), block=32, args=[texture, result, *given])
    assert done.ok, done.report()
    return result


def value(texture: TextureOf, at: list[int], layer: int) -> np.ndarray:
    """A texel by the address modes, all four channels."""
    place = []
    for i, extent, mode in zip(at, texture.extents, texture.modes, strict=True):
        if mode == "border" and not 0 <= i < extent:
            low = (
                {"u": 0, "i": -1}.get(texture.array.dtype.kind, -math.inf)
                if texture.read == "normalized"
                else -math.inf
            )
            edge = np.clip(texture.border, low, 1 if texture.read == "normalized" else math.inf)
            return np.concatenate([edge[: texture.channels], np.zeros(4 - texture.channels)])
        if mode == "wrap" and texture.normalized:
            i %= extent
        elif mode == "mirror" and texture.normalized:
            i %= 2 * extent
            i = i if i < extent else 2 * extent - 1 - i
        place.append(min(max(i, 0), extent - 1))
    index = tuple(place[::-1])
    texel = np.atleast_1d(texture.array[(layer, *index) if texture.layered else index]).astype(np.float64)
    if texture.read == "normalized":
        texel = np.maximum(texel / np.iinfo(texture.array.dtype).max, -1)
    return np.concatenate([texel, np.zeros(4 - len(texel))])


def sample(texture: TextureOf, point: np.ndarray, layer: int = 0) -> np.ndarray:
    """CUDA's programming guide, in double precision, with a fraction of 8 bits."""
    at = []
    for x, extent in zip(point.astype(np.float64), texture.extents, strict=True):
        at.append(x * extent if texture.normalized else x)
    if texture.filter == "point":
        return value(texture, [math.floor(x) for x in at], layer)
    low = [math.floor(x - 0.5) for x in at]
    parts = [math.floor((x - 0.5 - i) * 256 + 0.5) / 256 for x, i in zip(at, low, strict=True)]
    total = np.zeros(4)
    for corner in product((0, 1), repeat=len(at)):
        weight = math.prod(part if up else 1 - part for up, part in zip(corner, parts, strict=True))
        total += weight * value(texture, [i + up for i, up in zip(low, corner, strict=True)], layer)
    return total


INTEGERS = [("u1", "u32"), ("i1", "s32"), ("u2", "u32"), ("i2", "s32"), ("u4", "u32"), ("i4", "s32")]


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 8, 10, 11, 14, 15, 18, 20, 23])
def test_a_float_is_that_of_the_guides_formulas(seed: int) -> None:
    """Every dimension, format, filter and address mode; float32 has the points without rounding."""
    texture, points, layers = drawn(RANDOM, seed)
    got = fetched(texture, points, "f32", layers)
    for lane in range(32):
        layer = min(int(layers[lane]) & 0xFFFFFFFF, texture.layers - 1)
        want = sample(texture, points[lane], layer)
        spread = float(np.abs(want).max()) + 8.0 * (texture.read == "element") + 1
        # A weight that rounds the other way, as the product of x and N is rounded, moves a dimension by 1/256.
        assert np.abs(got[lane] - want).max() <= (
            points.shape[1] * spread / 256 if texture.filter == "linear" else 1e-6
        ), lane


@pytest.mark.parametrize(("kind", "result"), INTEGERS)
def test_elements_keep_their_bits(kind: str, result: str) -> None:
    for axes, of in ((1, "f32"), (1, "s32"), (2, "f32"), (3, "f32")):
        texture = TextureOf(array_of(RANDOM, kind, axes, 4, False), 4)
        points = RANDOM.integers(-2, 8, (32, axes)) + (0.5 if of == "f32" else 0)
        got = fetched(texture, points, result, of=of)
        for lane in range(32):
            inside = all(0 <= x < n for x, n in zip(points[lane], texture.extents, strict=True))
            want = value(texture, [math.floor(x) for x in points[lane]], 0) if of == "f32" or inside else np.zeros(4)
            assert (got[lane].astype(np.int64) == want.astype(np.int64)).all()


def test_a_gather_is_the_four_texels_of_the_filter_counter_clockwise() -> None:
    texture = TextureOf(np.arange(12, dtype=np.float32).reshape(3, 4))
    got = fetched(texture, np.tile([[2.0, 1.0]], (32, 1)), "f32", what="tld4.r.{}.v4")
    assert got[0].tolist() == [5, 6, 2, 1]


def test_linear_weights_have_eight_bits() -> None:
    """Between 0 and 256, a step along x is 1/256 of a texel; halves go up, as an H200 has them."""
    texture = TextureOf(np.array([0, 256], np.float32), filter="linear")
    points = 0.5 + np.arange(32)[:, None] / 1024
    assert fetched(texture, points, "f32")[:, 0].tolist() == [(n + 2) // 4 for n in range(32)]


# By nvcc 13.0, -arch=sm_90: tex2DLod, tex2DGrad, surf2Dread, surf2Dwrite, surf1Dread, surf3Dwrite, in that order.
FORMS = """
tex.level.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%t, {%f0, %f0}], %f0;
tex.grad.2d.v4.f32.f32 {%f14, %f15, %f16, %f17}, [%t, {%f0, %f0}], {%f0, %f0}, {%f0, %f0};
txq.width.b32 %r20, [%t]; suq.height.b32 %r21, [%t]; txq.depth.b32 %r22, [%t]; txq.level.height.b32 %r23, [%t], 0;
"""


def test_levels_gradients_and_queries() -> None:
    texture = TextureOf(np.full((3, 5), 7, np.float32))
    out = np.zeros((32, 4), np.int32)
    body = (
        f"mov.f32 %f0, 0f3F000000; {FORMS} cvt.rni.s32.f32 %r1, %f10; cvt.rni.s32.f32 %r2, %f14; shl.b32 %r2, %r2, 8;"
    )
    body += "add.u32 %r20, %r20, %r2; st.global.v4.b32 [%d30], {%r20, %r21, %r22, %r1};"
    assert emulate_ptx(kernel(body, {}), args=[texture, out]).ok
    assert out[5].tolist() == [5 + 7 * 256, 3, 0, 7]


def surfaces(body: str, array: np.ndarray, out: np.ndarray, block: int = 32, **more: Any) -> list:
    text = module(HEAD + body, {"t": "u64", "o": "u64"}, "sm_90", shared=False)
    return emulate_ptx(text, block=block, args=[TextureOf(array, **more), out]).findings


def test_a_surface_is_read_and_written_by_bytes_along_x() -> None:
    array, out = np.arange(64, dtype=np.float32).reshape(2, 32), np.zeros((32, 4), np.uint32)
    body = """shl.b32 %r1, %r31, 2; mov.u32 %r2, 1; mov.u32 %r3, 0; suld.b.2d.b32.trap {%r5}, [%t, {%r1, %r2}];
    bar.warp.sync -1; sust.b.2d.b32.clamp [%t, {%r1, %r3}], {%r5}; add.u32 %r6, %r1, 64;
    suld.b.2d.b32.zero {%r7}, [%t, {%r6, %r2}]; st.global.v4.b32 [%d30], {%r5, %r7, %r3, %r3};"""
    assert surfaces(body, array, out) == []
    assert (array[0] == array[1]).all() and (out.view(np.float32)[:, 0] == np.arange(32, 64)).all()
    assert (out.view(np.float32)[:16, 1] == np.arange(48, 64)).all() and not out[16:, 1].any()
    volume = np.zeros((2, 3, 16), np.uint8)
    store = "mov.u32 %r1, 2; mov.u32 %r2, 1; sust.b.3d.v4.b32.trap [%t, {%r0, %r1, %r2, %r2}], {%r1, %r2, %r1, %r2};"
    assert surfaces(f"mov.u32 %r0, 0; {store}", volume, out, block=1) == []
    assert volume[1, 2].view(np.uint32).tolist() == [2, 1, 2, 1] and volume.sum() == 6


def test_surfaces_race_as_global_memory_does_and_textures_are_read_only() -> None:
    """Two warps exchange words through a surface, with a barrier and without; and a texture of what was written."""
    write = "shl.b32 %r1, %r31, 2; sust.b.1d.b32.trap [%t, {%r1}], {%r31}; "
    read = "xor.b32 %r2, %r1, 128; suld.b.1d.b32.trap {%r3}, [%t, {%r2}]; st.global.b32 [%d30], %r3;"
    array, out = np.zeros(64, np.uint32), np.zeros((64, 4), np.uint32)
    assert surfaces(f"{write} bar.sync 0; {read}", array, out, 64) == []
    assert (out[:, 0] == np.arange(64) ^ 32).all()
    assert {one.kind for one in surfaces(write + read, array, out, 64)} == {"race"}
    sampled = "tex.1d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [%t, {%r31}]; st.global.b32 [%d30], %r4;"
    (race,) = surfaces(f"{write} bar.sync 0; {sampled}", array, out, 64)
    assert "samples what sust.b.1d.b32.trap" in race.message and "A surface, or ld.global" in race.orders


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tex.cube.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f4, %f4, %f4, %f4}];",
            "tex.cube.v4.f32.f32 is not emulated",
        ),
        ("tex.2d.v2.f16x2.f32 {%r0, %r1}, [%t, {%f4, %f4}];", "tex.2d.v2.f16x2.f32 is not emulated"),
        ("tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f4, %f4}], {%r0, %r1};", "an offset or a depth"),
        ("tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f4}];", "1 coordinates for 2d, which has 2"),
        ("sured.b.add.1d.u32.trap [%t, {%r0}], %r1;", "sured is not emulated: atom.global"),
        ("sust.p.1d.b32.trap [%t, {%r0}], {%r1};", "sust.p.1d.b32.trap is not emulated"),
        ("txq.addr_mode_0.b32 %r0, [%t];", "width, height, depth, array_size"),
        ("tld4.r.3d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f4, %f4, %f4, %f4}];", "tld4 of .3d"),
    ],
)
def test_forms_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        surfaces(text, np.zeros(4, np.float32), np.zeros((32, 4), np.uint32))


@pytest.mark.parametrize(
    ("text", "array", "message"),
    [
        ("mov.f32 %f0, 0f7F800000; tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f0}];", "f4", "coordinate inf"),
        ("mov.f32 %f0, 0f00000000; tex.1d.v4.u32.f32 {%r0, %r1, %r2, %r3}, [%t, {%f0}];", "f4", "has floats"),
        (
            "mov.f32 %f0, 0f00000000; tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f0}];",
            "u1",
            "has elements of uint8",
        ),
        (
            "mov.f32 %f0, 0f00000000; tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%t, {%f0, %f0}];",
            "f4",
            "is a texture .1d",
        ),
        ("mov.u32 %r0, 256; suld.b.1d.b32.trap {%r1}, [%t, {%r0}];", "f4", "is outside of t, whose extents are"),
        ("mov.u32 %r0, 2; suld.b.1d.b32.trap {%r1}, [%t, {%r0}];", "f4", "no multiple of the 4 accessed"),
        ("mov.u64 %t, 5; tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%t, {%r31}];", "f4", "0x5 is no texture"),
        ("ld.global.b32 %r0, [%t];", "f4", "lies in no buffer"),
    ],
)
def test_uses_that_are_refused(text: str, array: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        surfaces(text, np.zeros(4, array), np.zeros((32, 4), np.uint32))


@pytest.mark.parametrize(
    ("array", "more", "message"),
    [
        (np.zeros(4), {}, "a texture of float64"),
        ([1, 2], {}, "array of TextureOf"),
        (np.zeros((4, 3), np.uint8), {"channels": 4}, r"4 channels of an array \(4, 3\)"),
        (np.zeros((4, 3), np.uint8), {"channels": 3}, "3 channels"),
        (np.zeros((2, 2, 2, 2), np.uint8), {}, "no texture of 1 channel"),
        (np.zeros((4, 4), np.uint8)[:, ::2], {}, "contiguous"),
        (np.zeros(4, np.uint8), {"address": "repeat"}, "address = 'repeat'"),
        (np.zeros(4, np.uint8), {"address": ("wrap", "wrap")}, "one for each of 1"),
        (np.zeros(4, np.uint8), {"filter": "linear"}, "linear values of uint8 as elements"),
        (np.zeros(4, np.int32), {"read": "normalized"}, "normalized values of int32"),
        (np.zeros(4, np.uint8), {"filter": "cubic"}, "filter = 'cubic'"),
    ],
)
def test_arrays_and_modes_that_are_refused(array: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        TextureOf(array, **more)
