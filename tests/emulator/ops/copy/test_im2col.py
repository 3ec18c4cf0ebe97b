"""im2col copies by kernels: random maps against a walk of PTX's text, encodings of the CuTe DSL, refusals."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.atoms.tma.im2col import Im2colMap, global_bits, wide_pixels
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.api import Im2colMapOf, emulate_ptx
from layoutgemm.emulator.machine.tensor_map import decode, decode_im2col, encode, encode_im2col, from_driver_im2col
from layoutgemm.errors import EmulatorError, PtxError, TmaError
from tests.emulator.ops.copy.tensor_copies import ARM, BEGIN, IN, OUT, PAIR, POLICIES, SHARED, WAIT, at, one, swizzled
from tests.emulator.run_ptx import Result, run

LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group"
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
PIXELS = Im2colMap(dtype("bf16"), (64, 9, 7, 2), (128, 1152, 8064), (-1, -1), (-1, -1), 64, 64, (1, 1, 1, 1), "128B")


def drawn(rng: np.random.Generator) -> Im2colMap:
    """A random map whose pixels are rows of 32, 64 or 128 bytes in shared memory."""
    kind, spatial = dtype(str(rng.choice(["e4m3", "bf16", "f32"]))), int(rng.integers(1, 4))
    mode = str(rng.choice(["none", "32B", "64B", "128B"]))
    channels = {"none": 32, "32B": 32, "64B": 64, "128B": 128}[mode] // kind.bytes
    extents = tuple(int(n) for n in rng.integers(3, 7, spatial + 1))
    inner = int(rng.integers(channels // 2, 2 * channels)) * kind.bytes // 16 * 16 // kind.bytes
    pitches = [inner * kind.bytes + 16 * int(rng.integers(0, 2))]
    for extent in extents[:-1]:
        pitches.append(pitches[-1] * extent)
    lower, upper = (tuple(int(n) for n in rng.integers(-2, 3, spatial)) for _ in range(2))
    lower = tuple(min(low, extent - 1 + high) for low, high, extent in zip(lower, upper, extents, strict=False))
    steps = (1, *(int(n) for n in rng.integers(1, 4, spatial)), 1)
    pixels = int(rng.integers(1, 9)) * 8
    return Im2colMap(kind, (inner, *extents), tuple(pitches), lower, upper, channels, pixels, steps, mode)


def start(rng: np.random.Generator, tmap: Im2colMap) -> tuple[int, ...]:
    """A random first pixel that the traversal visits."""
    places = zip(tmap.box, tmap.visited, tmap.steps[1:-1], strict=True)
    pixel = [first + step * int(rng.integers(0, count)) for (first, _), count, step in places]
    return (0, *pixel, int(rng.integers(0, tmap.extents[-1])))


def walk(tmap: Im2colMap, coordinates: tuple[int, ...]) -> list[list[int]]:
    """The base pixels from the first one on: W fastest, then H, D and the images, each back to its lower corner."""
    now, seen = list(coordinates[1:]), []
    for _ in range(tmap.pixels):
        seen.append(list(now))
        for axis, (first, last) in enumerate(tmap.box):
            now[axis] += tmap.steps[1 + axis]
            if now[axis] <= last:
                break
            now[axis] = first
        else:
            now[-1] += 1
    return seen


def elements(tmap: Im2colMap, memory: np.ndarray) -> np.ndarray:
    """The tensor as an array, images first."""
    strides = (*reversed(tmap.strides), tmap.dtype.bytes)
    return np.lib.stride_tricks.as_strided(memory.view(WORDS[tmap.dtype.bytes]), tmap.extents[::-1], strides)


def setting(tmap: Im2colMap, **more: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    memory = np.random.default_rng(1).integers(0, 256, tmap.strides[-1] * tmap.extents[-1], dtype=np.uint8)
    content = np.frombuffer(encode_im2col(tmap, at(1)), np.uint8).copy()
    return {"map": content, "tensor": memory, **more}, memory


def loaded(tmap: Im2colMap, coordinates: tuple[int, ...], offsets: tuple[int, ...], policy: int = 0) -> Result:
    braces = ["{" + ", ".join(map(str, numbers)) + "}" for numbers in (coordinates, offsets)]
    body = f"""{BEGIN} mov.u32 %r10, {tmap.bytes}; @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {tmap.bytes};
    {LOAD.format(rank=tmap.rank)} [%r1], [%map, {braces[0]}], [%r2], {braces[1]};
    {WAIT} {OUT}"""
    buffers, _ = setting(tmap, out=np.zeros(tmap.bytes, np.uint8))
    return run(body, buffers, shared=SHARED, policy=POLICIES[policy])


@pytest.mark.parametrize("seed", range(24))
def test_loads_are_those_of_a_walk_through_the_pixels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tmap = drawn(rng)
    coordinates, offsets = start(rng, tmap), tuple(int(n) for n in rng.integers(0, 4, tmap.rank - 2))
    result = loaded(tmap, coordinates, offsets, seed % len(POLICIES))
    whole = elements(tmap, setting(tmap)[1])
    wanted = np.zeros((tmap.pixels, tmap.channels), whole.dtype)
    kept = min(tmap.channels, tmap.extents[0])
    for row, pixel in zip(wanted, walk(tmap, coordinates), strict=True):
        place = [p + by for p, by in zip(pixel, (*offsets, 0), strict=True)][::-1]
        if all(0 <= p < n for p, n in zip(place, whole.shape, strict=False)):
            row[:kept] = whole[tuple(place)][:kept]
    assert result.kinds == []
    assert (result["out"] == swizzled(wanted.reshape(-1).view(np.uint8), tmap.swizzle)).all()


def drawn_wide(rng: np.random.Generator) -> Im2colMap:
    """A random map of wide copies: of the drawn maps, with corners of W alone and a swizzle."""
    while (tmap := drawn(rng)).swizzle == "none":
        pass
    wide = str(rng.choice(["w", "w::128"]))
    return replace(tmap, lower=tmap.lower[:1], upper=tmap.upper[:1], wide=wide, pixels=min(tmap.pixels, 32))


def walk_wide(tmap: Im2colMap, coordinates: tuple[int, ...], count: int) -> list[list[int]]:
    """The pixels from the first one on: along W, then to the lower corner of the next image, H and D as they are."""
    now, seen, ((first, last),) = list(coordinates[1:]), [], tmap.box
    while len(seen) < count:
        seen.append(list(now))
        now[0] += tmap.steps[1]
        if now[0] > last:
            now[0], now[-1] = first, now[-1] + 1
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_wide_loads_are_those_of_a_walk_along_w_and_the_images(seed: int) -> None:
    """wHalo pixels more of the walk lie behind the column; wOffset moves the box and the first pixel."""
    rng = np.random.default_rng(seed)
    tmap = drawn_wide(rng)
    halo, offset = (0 if tmap.wide == "w::128" else int(rng.integers(0, 4))), int(rng.integers(0, 4))
    first, step = tmap.box[0][0], tmap.steps[1]
    begin = first - int(rng.integers(1, 4)) if seed % 3 == 0 else first + step * int(rng.integers(0, tmap.visited[0]))
    fixed = [int(rng.integers(0, extent)) for extent in tmap.extents[2:]]
    coordinates, count = (0, begin, *fixed), (128 if tmap.wide == "w::128" else tmap.pixels) + halo
    size = count * tmap.channels * tmap.dtype.bytes
    load = LOAD.format(rank=tmap.rank).replace("im2col", f"im2col::{tmap.wide}")
    body = f"""{BEGIN} mov.u32 %r10, {size}; @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {size}; mov.u16 %h0, {halo}; mov.u16 %h1, {offset};
    {load} [%r1], [%map, {{{", ".join(map(str, coordinates))}}}], [%r2], {{%h0, %h1}};
    {WAIT} {OUT}"""
    buffers, memory = setting(tmap, out=np.zeros(size, np.uint8))
    result = run(body, buffers, shared=2 * SHARED, policy=POLICIES[seed % len(POLICIES)], target="sm_100a")
    whole = elements(tmap, memory)
    wanted = np.zeros((count, tmap.channels), whole.dtype)
    kept = min(tmap.channels, tmap.extents[0])
    for row, pixel in zip(wanted, walk_wide(tmap, coordinates, count), strict=True):
        place = [pixel[0] + offset, *pixel[1:]][::-1]
        if all(0 <= p < n for p, n in zip(place, whole.shape, strict=False)):
            row[:kept] = whole[tuple(place)][:kept]
    assert result.kinds == []
    assert (result["out"] == swizzled(wanted.reshape(-1).view(np.uint8), tmap.swizzle)).all()
    read, address = decode_im2col(encode_im2col(tmap, at(1)), tmap.wide)
    assert (replace(read, dtype=tmap.dtype), address) == (tmap, at(1))


def test_the_figures_of_wide_copies() -> None:
    """PTX ISA's examples of im2col::w, of images of 7 pixels: 128 pixels and two more; and three buffers in steps."""
    images = Im2colMap(
        dtype("bf16"), (64, 7, 9, 128), (128, 896, 8064), (0,), (0,), 64, 128, (1,) * 4, "128B", wide="w"
    )
    w, h, n = wide_pixels(images, (0, 3, 2, 7), 2)
    assert len(w) == 130 and set(h.tolist()) == {2}
    assert list(zip(n.tolist(), w.tolist(), strict=True))[:6] == [(7, 3), (7, 4), (7, 5), (7, 6), (8, 0), (8, 1)]
    assert (n[-1], w[-1]) == (7 + (3 + 129) // 7, (3 + 129) % 7)
    steps = replace(images, lower=(-1,), upper=(-1,), steps=(1, 3, 1, 1))
    for offset, places in ((0, [-1, 2, 5]), (1, [0, 3, 6]), (2, [1, 4, 7])):
        assert (wide_pixels(steps, (0, -1, 2, 7), 0)[0][:6] + offset).tolist() == places * 2


@pytest.mark.parametrize(
    ("change", "coordinates", "offsets", "message"),
    [
        ({}, (0, 7, 0, 0), (0, 0), "begins at W = 7; the pixel box has -1 to 5"),
        ({"steps": (1, 2, 1, 1)}, (0, 0, 0, 0), (0, 0), "begins at W = 0; the pixel box has -1 to 5 in steps of 2"),
        ({"wide": "w::128"}, (0, 0, 0, 0), (2, 0), r"a halo of 2 pixels of im2col::w::128: .* a figure alone"),
        ({}, (0, 0, 0, 0), (0, 40000), r"wHalo and wOffset \(0, 40000\)"),
        ({"swizzle": "none"}, (0, 0, 0, 0), (0, 0), "swizzle none of a copy im2col::w"),
    ],
)
def test_wide_copies_that_are_refused(
    change: dict[str, object], coordinates: tuple[int, ...], offsets: tuple[int, ...], message: str
) -> None:
    wide = Im2colMap(dtype("bf16"), (64, 7, 9, 2), (128, 896, 8064), (-1,), (-1,), 64, 64, (1,) * 4, "128B", wide="w")
    tmap = replace(wide, **change)
    with pytest.raises((EmulatorError, TmaError), match=message):
        encode_im2col(tmap, at(1))
        global_bits(tmap, coordinates, offsets)


def test_a_wide_map_is_of_its_mode() -> None:
    wide = Im2colMap(dtype("bf16"), (64, 7, 9, 2), (128, 896, 8064), (-1,), (-1,), 64, 64, (1,) * 4, "128B", wide="w")
    for mode, said in (("", "is .im2col, and"), ("w::128", "is .im2col::w::128, and the tensor map is of im2col::w")):
        with pytest.raises(EmulatorError, match=said):
            decode_im2col(encode_im2col(wide, at(1)), mode)


@pytest.mark.parametrize(("seed", "reduces"), [*((seed, "") for seed in range(6)), (6, "add"), (7, "xor")])
def test_stores_are_those_of_a_walk_through_the_pixels(seed: int, reduces: str) -> None:
    rng = np.random.default_rng(seed)
    tmap, store = drawn(rng), STORE
    while reduces and tmap.dtype.bytes != 4:
        tmap = drawn(rng)
    if reduces:
        tmap = replace(tmap, dtype=dtype("u32"))
        store = STORE.replace("cp.", "cp.reduce.").replace("cta.", f"cta.{reduces}.")
    coordinates = start(rng, tmap)
    source = rng.integers(0, 256, tmap.bytes, dtype=np.uint8)
    buffers, memory = setting(tmap, source=source)
    wanted = memory.copy()
    whole = elements(tmap, wanted)
    rows = swizzled(source, tmap.swizzle).view(whole.dtype).reshape(tmap.pixels, tmap.channels)  # its own inverse
    kept = min(tmap.channels, tmap.extents[0])
    combined = {"": lambda old, new: new, "add": np.add, "xor": np.bitwise_xor}[reduces]
    for row, pixel in zip(rows, walk(tmap, coordinates), strict=True):
        if all(0 <= p < n for p, n in zip(pixel[::-1], whole.shape, strict=False)):
            there = whole[tuple(pixel[::-1])][:kept]
            there[:] = combined(there, row[:kept])
    braces = "{" + ", ".join(map(str, coordinates)) + "}"
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, {tmap.bytes};
    {IN} fence.proxy.async.shared::cta; bar.sync 0; @!%p0 bra END;
    {store.format(rank=tmap.rank)} [%map, {braces}], [%r1]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:"""
    assert run(body, buffers, shared=SHARED, policy=POLICIES[seed % len(POLICIES)]).kinds == []
    assert (buffers["tensor"] == wanted).all()


# Words 2, 3 to 6, 13, 14 and 15, as the CuTe DSL 4.8.1 wrote them for sm_90a.
ENCODED = [
    (PIXELS, 0x46533, 0x3F000000, 0xFFFFFFFF, 0x3F),
    (replace(PIXELS, upper=(-2, -1)), 0x46533, 0x3F000000, 0xFFFEFFFF, 0x3F),
    (replace(PIXELS, lower=(-3, -1), upper=(-1, 0)), 0x46533, 0x3F000000, 0x00FFFFFD, 0x3F),
    (replace(PIXELS, upper=(1, 2)), 0x46533, 0x3F000000, 0x0201FFFF, 0x3F),
    (replace(PIXELS, steps=(1, 2, 1, 1)), 0x46533, 0x3F000008, 0xFFFFFFFF, 0x3F),
    (replace(PIXELS, channels=16, pixels=1024), 0x46533, 0x0F000000, 0xFFFFFFFF, 0x3FF),
    (
        Im2colMap(dtype("bf16"), (64, 9, 2), (128, 1152), (-300,), (-100,), 64, 64, (1, 2, 1), "128B"),
        0x46523, 0x3F000008, 0xFF9CFED4, 0x3F,
    ),
    (
        Im2colMap(dtype("bf16"), (64, 9, 7, 5, 2), (128, 1152, 8064, 40320), (0, -1, 0), (-1, 0, -1), 64, 64,
                  (1, 1, 2, 3, 1), "128B"),
        0x46543, 0x3F000440, 0x7C1F03E0, 0x3F,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", ENCODED, ids=range(len(ENCODED)))
def test_encodings_are_those_of_the_dsl(case: tuple[Im2colMap, int, int, int, int]) -> None:
    tmap, *wanted = case
    words = struct.unpack("<32I", encode_im2col(tmap, at(1)))
    assert [words[2] | 2, *words[13:16]] == wanted  # the DSL alone sets bit 1
    assert list(words[8 : 8 + tmap.rank]) == [extent - 1 for extent in tmap.extents]
    assert decode_im2col(encode_im2col(tmap, at(1))) == (tmap, at(1))
    shared = tmap.encode_arguments()
    assert encode_im2col(tmap, at(1)) == from_driver_im2col(
        shared["tensorDataType"], at(1), tmap.extents, tmap.strides, tmap.lower, tmap.upper, tmap.channels, tmap.pixels,
        tmap.steps, 0, shared["swizzle"], shared["l2Promotion"], shared["oobFill"],
    )  # fmt: skip


def test_the_mode_of_a_map_is_that_of_its_copy() -> None:
    with pytest.raises(EmulatorError, match="an im2col map, and the instruction has no"):
        decode(encode_im2col(PIXELS, at(1)))
    with pytest.raises(EmulatorError, match="im2col, and the tensor map is of a box"):
        decode_im2col(encode(PAIR, at(1)))
    with pytest.raises(EmulatorError, match="lower corner of H is -129"):
        encode_im2col(replace(PIXELS, lower=(-1, -129)), at(1))


@pytest.mark.parametrize(
    ("coordinates", "offsets", "message"),
    [
        ((0, -2, 0, 0), (0, 0), "begins at W = -2; the pixel box has -1 to 7"),
        ((4, 0, 0, 0), (0, 0), "channel 4 of bf16 is no multiple of 16 bytes"),
        ((0, 0, 0, 0), (256, 0), r"offsets \(256, 0\); rank 4 takes 2 of 0 to 255"),
    ],
)
def test_copies_that_are_refused(coordinates: tuple[int, ...], offsets: tuple[int, ...], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        loaded(PIXELS, coordinates, offsets)


GET = LOAD.format(rank=4) + " [%r1], [%map, {0, 0, 0, 0}], [%r2], {0, 0};"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GET.replace(", {0, 0};", ";"), "0 im2col offsets for 2"),
        (GET.replace(", {0, 0};", ", {0};"), "1 im2col offsets for 2"),
        (GET.replace("4d", "2d").replace("{0, 0, 0, 0}", "{0, 0}"), "3 to 5 dimensions"),
        (GET.replace(".im2col", ".im2col::w"), "im2col::w needs .target sm_10"),
        (GET.replace("{0, 0};", "{0, 0}, %r1, %r2;"), "operands"),
        (STORE.replace("cp.", "cp.reduce.").replace("im2col_no_offs", "add.tile::scatter4").format(rank=4)
         + " [%map, {0, 0, 0, 0}], [%r1];", "scatter4"),
    ],
)  # fmt: skip
def test_forms_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        one(ARM + text)


def test_a_store_of_odd_pixels_is_refused() -> None:
    tmap = replace(PIXELS, extents=(60, 9, 7, 2))
    buffers, _ = setting(tmap)
    body = f"mov.u32 %r1, smem; {STORE.format(rank=4)} [%map, {{0, 0, 0, 0}}], [%r1];"
    with pytest.raises(EmulatorError, match="pixels of 120 bytes, no multiple of 16"):
        run(body, buffers, shared=SHARED, block=1)


def test_emulate_ptx_takes_a_map_over_images() -> None:
    images = np.arange(2 * 7 * 9 * 64, dtype=np.uint16).reshape(2, 7, 9, 64)
    text = f"""
    .version 8.7
    .target sm_90a
    .visible .entry copy(.param .align 64 .b8 map[128], .param .u64 out)
    {{
      .reg .b32 %r<12>; .reg .b64 %d<4>; .reg .b64 %map, %out; .reg .pred %p<4>;
      .shared .align 1024 .b8 smem[{SHARED}];
      mov.b64 %map, map; ld.param.u64 %out, [out];
      {BEGIN} mov.u32 %r10, 8192; @!%p0 bra WAIT;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 8192;
      {GET.replace("{0, 0};", "{1, 1};")}
      {WAIT} {OUT} ret;
    }}"""
    out = np.zeros(4096, np.uint16)
    tmap = replace(PIXELS, swizzle="none", channels=64)
    assert emulate_ptx(text, block=32, args=[Im2colMapOf(images, tmap), out]).ok
    assert (out.reshape(64, 64)[:3] == images[0, 1, 1:4]).all()
    with pytest.raises(EmulatorError, match=r"images of 16128 bytes; the map reaches to byte 24192"):
        emulate_ptx(text, block=32, args=[Im2colMapOf(images, replace(tmap, extents=(64, 9, 7, 3))), out])
