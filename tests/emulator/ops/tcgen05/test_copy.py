"""tcgen05.ld, st and cp in the emulator: every shape, against the figures of the PTX ISA said again."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms.copy.tmem import FRAGMENTS, SPREADS, repetitions, tcgen05_cp
from layoutgemm.atoms.mma.tcgen05 import tcgen05_mma
from layoutgemm.errors import EmulatorError
from tests.emulator.ops.tcgen05.case import EARLY, Case, only
from tests.emulator.run_ptx import Result, run
from tests.micro import tcgen05 as text_of
from tests.micro import values

# ------------------------------------------------------------ registers


def lane_column(shape: str, thread, register, repeat: int, split: int = 0):
    """(lane, column) of a thread's register. PTX ISA, figures of the matrix fragments of tcgen05.ld."""
    if shape == "32x32b":
        return thread + 0 * register, register + 0 * thread
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register
    if shape == "16x128b":
        return thread // 4 + 8 * (register % 2), thread % 4 + 4 * (register // 2)
    if shape == "16x256b":
        return thread // 4 + 8 * (register // 2 % 2), 2 * (thread % 4) + register % 2 + 8 * (register // 4)
    return thread % 16 + 0 * register, register + split * (thread // 16)


def registers_of(shape: str, repeat: int) -> int:
    return repeat * {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}[shape]


def moved(line: str, columns: int, registers: int, image) -> tuple[Result, np.ndarray]:
    """Run a line in every warp; the result and the registers of each thread, [thread, register]."""
    text = text_of.kernel(text_of.commit(), {}, columns, warps=[line], registers=registers)
    out = np.zeros((128, registers), dtype=np.uint32)
    return run(text, {"T": image, "R": out}, block=128), out


SHAPES = [(shape, repeat) for shape in FRAGMENTS for repeat in sorted({1, 2, repetitions(shape)[-2]})]


@pytest.mark.parametrize("shape,repeat", SHAPES)
def test_every_load(shape, repeat):
    columns = max(32, repeat * {"16x64b": 2, "16x128b": 4, "16x256b": 8}.get(shape, 1) + 8)
    image = np.arange(128 * columns, dtype=np.uint32).reshape(128, columns)
    for upper in (0, 16) if shape != "32x32b" and repeat == 2 else (0,):
        count, split = registers_of(shape, repeat), 3 if shape == "16x32bx2" else 0
        regs = "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"
        at = f"add.u32 %at, %ta, {upper << 16};"
        line = f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {regs}, [%at]{f', {split}' if split else ''};"
        found, out = moved(f"{at}\n  {line}", columns, count, image.copy())
        thread, register = np.arange(128)[:, None], np.arange(count)[None, :]
        lane, column = lane_column(shape, thread % 32, register, repeat, split)
        assert found.findings == []
        assert np.array_equal(out, image[lane + upper + thread // 32 * 32, column])


@pytest.mark.parametrize("shape,repeat", [(shape, repeat) for shape, repeat in SHAPES if repeat <= 2])
def test_every_store(shape, repeat):
    """Each thread stores its number and the register's; everything else stays."""
    columns = 32
    image = np.full((128, columns), 7, dtype=np.uint32)
    count, split = registers_of(shape, repeat), 5 if shape == "16x32bx2" else 0
    values_ = " ".join(f"mad.lo.u32 %v{i}, %lane, 1000, {i};" for i in range(count))
    regs = "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"
    line = f"{values_} tcgen05.st.sync.aligned.{shape}.x{repeat}.b32 [%ta+1]{f', {split}' if split else ''}, {regs};"
    found, _ = moved(line, columns, count, image)
    thread, register = np.arange(128)[:, None], np.arange(count)[None, :]
    lane, column = lane_column(shape, thread % 32, register, repeat, split)
    expected = np.full((128, columns), 7, dtype=np.uint32)
    expected[lane + thread // 32 * 32, column + 1] = thread * 1000 + register
    assert found.findings == [] and np.array_equal(found["T"], expected)


def test_packed_loads_and_stores():
    """A packed register holds the low halves of two columns; unpacking writes them and leaves the upper halves."""
    image = np.arange(128 * 32, dtype=np.uint32).reshape(128, 32) + 0x50000
    _, out = moved("tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {%v0, %v1, %v2, %v3}, [%ta];", 32, 4, image.copy())
    assert np.array_equal(out, image[:, 0:8:2] & 0xFFFF | (image[:, 1:8:2] & 0xFFFF) << 16)
    line = "mov.u32 %v0, 0x20001; mov.u32 %v1, 0x40003; "
    line += "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%ta], {%v0, %v1};"
    found, _ = moved(line, 32, 2, image.copy())
    assert (found["T"][:, :4] & 0xFFFF == [1, 2, 3, 4]).all() and (found["T"][:, :4] >> 16 == 5).all()
    assert np.array_equal(found["T"][:, 4:], image[:, 4:])


@pytest.mark.parametrize("how,kind", (("min", "f32"), ("max.abs", "f32"), ("max", "s32"), ("min", "u32")))
def test_reducing_loads(how, kind):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-100, 100, size=(128, 32))
    image = numbers.astype(np.float32).view(np.uint32) if kind == "f32" else numbers.astype(np.int32).view(np.uint32)
    line = f"tcgen05.ld.red.sync.aligned.32x32b.x4.{how}.{kind} {{%v0, %v1, %v2, %v3}}, %v4, [%ta];"
    _, out = moved(line, 32, 5, image.copy())
    of = (image if kind == "u32" else np.abs(numbers) if "abs" in how else numbers)[:, :4]
    best = of.min(axis=1) if "min" in how else of.max(axis=1)
    assert np.array_equal(out[:, :4], image[:, :4])
    got = out[:, 4].view(np.float32 if kind == "f32" else np.int32 if kind == "s32" else np.uint32)
    assert np.array_equal(got, best)


@pytest.mark.parametrize("how", ("min", "max.NaN", "max.abs", "min.abs.NaN"))
def test_reducing_loads_of_nans(how):
    """PTX ISA, tcgen05.ld.red: .NaN gives the canonical NaN if any value is one; without it a number wins."""
    image = np.full((128, 32), -2.0, np.float32)
    image[:, 1] = 1.0
    image[5, 2], image[6, :4] = np.nan, np.nan
    line = f"tcgen05.ld.red.sync.aligned.32x32b.x4.{how}.f32 {{%v0, %v1, %v2, %v3}}, %v4, [%ta];"
    _, out = moved(line, 32, 5, image.view(np.uint32).copy())
    number = {"min": -2.0, "max.NaN": 1.0, "max.abs": 2.0, "min.abs.NaN": 1.0}[how]
    got = out[:, 4].view(np.float32)
    assert (np.delete(got, [5, 6]) == number).all() and out[6, 4] == 0x7FFFFFFF
    assert out[5, 4] == 0x7FFFFFFF if "NaN" in how else got[5] == number


# ------------------------------------------------------------ tcgen05.cp


def copied(shape: str, multicast: str, group: int = 1, source_format: str = ""):
    """(result, the rows' bytes in shared memory [block, row, byte], the columns written)."""
    rng = np.random.default_rng(3)
    rows, bits = (int(part.removesuffix("b")) for part in shape.split("x"))
    wide = bits // 8
    # no swizzle: 8 rows of 16 bytes lie together; chunks along a row 4096 bytes apart, 8 rows 128
    data = rng.integers(0, 256, size=(group, 8192), dtype=np.uint8)
    word = 1 << 46 | 128 >> 4 << 32 | 4096 >> 4 << 16
    byte = np.arange(wide)[None, :]
    row = np.arange(rows)[:, None]
    source = data[:, row // 8 * 128 + row % 8 * 16 + byte % 16 + byte // 16 * 4096]
    name = tcgen05_cp(shape, multicast, group, source_format).ptx
    body = [f"{name} [%base], %descA;", *text_of.commit(group)]
    text = text_of.kernel(body, {"A": text_of.Tile(8192, word)}, 16, group)
    image = np.full((group, 128, 16), 7, dtype=np.uint32)
    found = run(text, {"T": image, "A": data}, block=128, grid=group, cluster=group)
    return found, np.ascontiguousarray(source), wide // 4


def lanes_of(shape: str, multicast: str, row: int) -> list[int]:
    """PTX ISA, tcgen05.cp: where a row goes."""
    if shape == "4x256b":
        return [32 * row]
    if multicast == "warpx2::02_13":
        return [row, row + 64]
    if multicast == "warpx2::01_23":
        return [row % 32 + 64 * (row // 32), row % 32 + 64 * (row // 32) + 32]
    return [row + 32 * q for q in range(4)] if multicast == "warpx4" else [row]


@pytest.mark.parametrize("shape,multicast", SPREADS)
def test_every_copy(shape, multicast):
    for group in (1, 2):
        found, source, columns = copied(shape, multicast, group)
        expected = np.full((group, 128, 16), 7, dtype=np.uint32)
        for row in range(source.shape[1]):
            for lane in lanes_of(shape, multicast, row):
                expected[:, lane, :columns] = source[:, row].view(np.uint32)
        assert found.findings == [] and np.array_equal(found["T"], expected)


@pytest.mark.parametrize("source_format,bits", (("b6x16_p32", 6), ("b4x16_p64", 4)))
def test_copies_widen_narrow_elements(source_format, bits):
    found, source, columns = copied("32x128b", "warpx4", 1, source_format)
    stream = np.unpackbits(source[0], axis=1, bitorder="little")[:, : 16 * bits].reshape(32, 16, bits)
    codes = (stream << np.arange(bits)).sum(axis=2) << (2 if bits == 4 else 0)
    expected = np.tile(np.ascontiguousarray(codes.astype(np.uint8)).view(np.uint32), (4, 1))
    assert np.array_equal(found["T"][0, :, :columns], expected)


def test_scale_factors_may_come_by_a_copy():
    """cp before mma of one thread needs no wait: the chunk of scale factors is used at once."""
    case = Case(tcgen05_mma("mxf8f6f4", 128, 16), swizzle="32B")
    chunk = np.zeros((32, 4, 4), dtype=np.uint8)
    for row in range(128):
        chunk[row % 32, row // 32] = values.encode(case.atom.scale.dtype, case.scales[0][row])[0]
    case.image[:, :, case.at["SFA"] : case.at["SFA"] + 4] = 0
    copy = ["tcgen05.cp.cta_group::1.32x128b.warpx4 [%sfa], %descS;"]
    at = case.body.index(next(line for line in case.body if line.startswith("tcgen05.mma")))
    body = [*case.body[:at], *copy, *case.body[at:]]
    tiles = {**case.tiles, "S": text_of.Tile(512, 1 << 46 | 8 << 32 | 1 << 16)}
    case.inputs["S"] = chunk.reshape(1, 512)
    for policy in (None, EARLY):
        given = [first for first in range(0, case.image.shape[2], 8) if first != case.at["SFA"]]
        found = case.run(text_of.kernel(body, tiles, case.image.shape[2], 1, given), policy)
        assert not found.machine.findings.found and np.array_equal(case.result(found), case.exact)


def test_copies_are_watched():
    found, _, _ = copied("32x128b", "warpx4")
    assert found.findings == []
    data = np.zeros((1, 8192), dtype=np.uint8)
    body = ["tcgen05.cp.cta_group::1.32x128b.warpx4 [%base], %descA;", *text_of.commit()]
    text = text_of.kernel(body, {"A": text_of.Tile(8192, 1 << 46 | 8 << 32 | 256 << 16)}, 16)
    buffers = {"T": np.zeros((128, 16), dtype=np.uint32), "A": data}
    only(run(text.replace("  @!%done bra wait;\n", ""), buffers, block=128), "race", "tensor memory of CTA")
    store = "  mov.u32 %to, smemA;\n  setp.eq.u32 %stop, %lane, 64;\n  @%stop st.shared.b32 [%to+16], %w;\n"
    only(run(text.replace("wait:\n", store + "wait:\n"), buffers, block=128), "race", "shared memory of CTA")


def test_a_store_of_an_unwritten_register_leaves_its_words_unwritten():
    """Kernels store whole vectors of which they use a part. The kernel's end reads all columns."""
    store = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%ta], {%gone, %v0}; tcgen05.wait::st.sync.aligned;"
    over = store.replace("x2", "x1").replace("%gone, ", "")
    for text, kinds in ((store, {"uninitialised"}), (store + over, set())):
        found, _ = moved(f".reg .b32 %gone; mov.b32 %v0, 0; {text}", 32, 1, np.zeros((128, 32), np.uint32))
        assert {one.kind for one in found.machine.suspects.found} == kinds, text
        assert not found.machine.findings.found
    store = store.replace("x2", "x1").replace("%gone, %v0", "%gone")
    with pytest.raises(EmulatorError, match="register %gone is read and was never written"):
        moved(f".reg .b32 %gone; {store.replace('[%ta]', '[%gone]')}", 32, 1, np.zeros((128, 32), np.uint32))


def test_a_warp_has_one_address():
    """PTX ISA, "tcgen05.ld": all threads of the warp give the same one."""
    image = np.arange(128 * 32, dtype=np.uint32).reshape(128, 32)
    own = "mov.u32 %at, %laneid; shl.b32 %at, %at, 16; add.u32 %at, %at, %ta;"
    found, out = moved(f"{own} tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%at];", 32, 1, image.copy())
    assert set(found.kinds) == {"protocol"} and "lanes give different addresses" in found.findings[0].message
    assert np.array_equal(out[:, 0], image[:, 0])
