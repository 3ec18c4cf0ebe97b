"""tcgen05 in the emulator: products of every kind, copies of every shape, and each rule by a text that breaks it.

Where things lie in tensor memory is said here again, in the words of the PTX ISA, and not taken from the atoms.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.atoms import smem_tile
from layoutgemm.atoms.copy_tmem import FRAGMENTS, SPREADS, repetitions, tcgen05_cp
from layoutgemm.atoms.descriptor import derive
from layoutgemm.atoms.descriptor_operand import operand_read
from layoutgemm.atoms.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.mma_tcgen05 import KINDS, tcgen05_mma
from layoutgemm.atoms.smem import SPANS
from layoutgemm.emulator.machine import Policy
from layoutgemm.emulator.ops.tensor_memory import Places
from layoutgemm.errors import DeadlockError, EmulatorError, LayoutError, PtxError
from tests.emulator.run_ptx import Result, run
from tests.emulator.test_wgmma import tile_bytes
from tests.micro import tcgen05 as text_of
from tests.micro import values

EARLY = Policy(products="early")
STRICT = Policy(tensor_strict=True)


# ------------------------------------------------------------ where things lie, by the PTX ISA


def accumulator_place(atom, row, column):
    """(block, lane, column) of an element of D. Data path layouts A, B, D, E, F, G."""
    m, n, _ = atom.shape_mnk
    block, row = divmod(row, m // atom.cta_group)
    if m == 64 and not atom.ws:  # F
        return block, 32 * (row // 16) + row % 16, column
    parts = {(32, 1): 4, (64, 1): 2, (128, 2): 2}.get((m, atom.cta_group), 1)  # G, E, B
    part, column = divmod(column, n // parts)
    return block, 128 // parts * part + row, column


def a_places(atom, row, k):
    """(block, lane, column, bit) of an element of A, and of its copies."""
    m = atom.shape_mnk[0]
    bits = atom.a_dtype.bits
    if atom.kind in ("f8f6f4", "mxf8f6f4"):
        bits = max(bits, 8)
    block, row = divmod(row, m // atom.cta_group)
    lane = 32 * (row // 16) + row % 16 if m == 64 else row
    low = 2 if atom.a_dtype.bits == 4 and bits == 8 else 0
    lanes = (lane, lane + 64) if (m, atom.cta_group) == (128, 2) else (lane,)
    return [(block, at, k * bits // 32, k * bits % 32 + low) for at in lanes]


def scale_places(atom, operand: str, row, block, first: int):
    """(block of the pair, lane, column, byte) of a scale factor: one copy for each quarter of the lanes."""
    m, n, _ = atom.shape_mnk
    word, byte = divmod(first + block, 4)
    if operand == "A":
        owner, own = divmod(row, m // atom.cta_group)
        groups = m // atom.cta_group // 32
        return [(owner, 32 * q + own % 32, own // 32 + groups * word, byte) for q in range(4)]
    halves = 2 if (m, atom.cta_group) == (128, 2) else 1
    padded = -(-n // (32 * halves)) * 32
    half, own = divmod(row, padded)
    groups = padded // 32
    lanes = [32 * q + own % 32 for q in range(4)] if halves == 1 else [64 * half + 32 * q + own % 32 for q in (0, 1)]
    return [(g, lane, own // 32 + groups * word, byte) for g in range(atom.cta_group) for lane in lanes]


# ------------------------------------------------------------ one product


class Case:
    """One tcgen05.mma, its inputs and what it gives exactly.

    The image's columns: the accumulator, then A if it is in tensor memory, then the scale factors of A and of B.
    """

    def __init__(self, atom, major_a="K", major_b="K", swizzle="128B", seed=0, ids=(0, 0), adds=True, mma="", **says):
        rng = np.random.default_rng(seed)
        self.atom, self.group = atom, atom.cta_group
        n = atom.shape_mnk[1]
        draw = {op: values.range_of(atom.dtype_of(op)) for op in "ABC"}
        self.m = {op: rng.integers(low, high + 1, size=atom.tile_of(op)) for op, (low, high) in draw.items()}
        self.tiles, self.inputs = {}, {}
        for operand, major in (("A", major_a), ("B", major_b)):
            if operand == "A" and atom.a_source == "tmem":
                continue
            self.shared(rng, operand, major, swizzle)
        d_columns = -(-n // 8) * 8
        self.at = {"D": 0, "A": d_columns, "SFA": d_columns + 16, "SFB": d_columns + 16 + 16}
        columns = d_columns + (16 if atom.a_source == "tmem" else 0)
        if atom.scale is not None:
            columns = d_columns + 48
        self.image = np.full((self.group, 128, columns), 0x7FC0DEAD, dtype=np.uint32)
        self.bring_accumulator()
        if atom.a_source == "tmem":
            self.bring_a()
        self.scales = [None, None]
        if atom.scale is not None:
            self.bring_scales(rng, ids)
            says |= {"scale_a_id": ids[0], "scale_b_id": ids[1]}
        self.word = instruction_descriptor(atom, major_a, major_b, **says).word
        self.adds = adds
        self.body = self.instructions(mma)
        self.text = text_of.kernel(self.body, self.tiles, columns, self.group)

    def shared(self, rng, operand, major, swizzle) -> None:
        atom = self.atom
        read = operand_read(atom, operand)
        wide = SPANS.get(swizzle, 128) * 8 // (8 if read.packing.startswith("b") else read.dtype.bits)
        extent = (read.rows, max(read.depth, wide)) if major == "K" else (-(-read.rows // wide) * wide, read.depth)
        tile = smem_tile(extent, read.dtype, major, swizzle, read.packing)
        padded = smem_tile((read.rows * (extent[0] // read.rows), extent[1]), read.dtype, major, swizzle, read.packing)
        described = derive(padded, read, operand)
        rows = self.m[operand].reshape(self.group, read.rows, read.depth)
        data = []
        for own in rows:
            matrix = np.vstack([own, np.zeros((tile.extent[0] - read.rows, read.depth), dtype=np.int64)])
            data.append(tile_bytes(rng, tile, 0, matrix))
        self.tiles[operand] = text_of.Tile(tile.bytes, described.word)
        self.inputs[operand] = np.stack(data)

    def bring_accumulator(self) -> None:
        bits = values.encode(self.atom.c_dtype, self.m["C"])
        self.image[accumulator_place(self.atom, *np.indices(bits.shape))] = bits

    def bring_a(self) -> None:
        bits = values.encode(self.atom.a_dtype, self.m["A"])
        columns = slice(self.at["A"], self.at["A"] + 16)
        self.image[:, :, columns] = 0
        for block, lane, column, bit in a_places(self.atom, *np.indices(bits.shape)):
            where = (block, lane, self.at["A"] + column)
            np.bitwise_or.at(self.image, where, (bits << bit.astype(np.uint64)).astype(np.uint32))

    def bring_scales(self, rng, ids) -> None:
        vector = self.atom.scale.vector
        blocks = self.atom.shape_mnk[2] // vector
        self.image[:, :, self.at["SFA"] :] = 0
        for which, (operand, size) in enumerate(zip("AB", self.atom.shape_mnk)):
            factors = 2 ** rng.integers(0, 3, size=(size, blocks))
            self.scales[which] = factors
            codes = values.encode(self.atom.scale.dtype, factors)
            for owner, lane, column, byte in scale_places(self.atom, operand, *np.indices(codes.shape), ids[which]):
                where = (owner, lane, self.at["SF" + operand] + column)
                np.bitwise_or.at(self.image, where, (codes << (8 * byte).astype(np.uint64)).astype(np.uint32))

    def instructions(self, mma: str) -> list[str]:
        in_tmem = self.atom.a_source == "tmem"
        scaled = ", [%sfa], [%sfb]" if self.atom.scale is not None else ""
        name = mma or self.atom.ptx
        return [
            f"mov.u32 %idesc, {self.word:#x};",
            "mov.b32 %d, %base;",
            *(f"add.u32 %{to}, %base, {self.at[of]};" for to, of in (("a", "A"), ("sfa", "SFA"), ("sfb", "SFB"))),
            f"setp.{'eq' if self.adds else 'ne'}.u32 %add, 0, 0;",
            f"{name} [%d], {'[%a]' if in_tmem else '%descA'}, %descB, %idesc{scaled}, %add;",
            *text_of.commit(self.group),
        ]

    def run(self, text: str | None = None, policy: Policy | None = None) -> Result:
        buffers = {"T": self.image.copy(), **{name: data.copy() for name, data in self.inputs.items()}}
        return run(text or self.text, buffers, block=128, grid=self.group, cluster=self.group, policy=policy)

    def result(self, found: Result):
        bits = found["T"][accumulator_place(self.atom, *np.indices(self.m["C"].shape))].astype(np.uint64)
        return values.decode(self.atom.c_dtype, bits & np.uint64((1 << self.atom.c_dtype.bits) - 1))

    @property
    def exact(self):
        a, b = self.m["A"].astype(float), self.m["B"].astype(float)
        if self.scales[0] is not None:
            a = a * np.repeat(self.scales[0], self.atom.scale.vector, axis=1)
            b = b * np.repeat(self.scales[1], self.atom.scale.vector, axis=1)
        return a @ b.T + (self.m["C"] if self.adds else 0)

    def check(self, policy: Policy | None = None) -> None:
        found = self.run(policy=policy)
        assert found.findings == []
        assert np.array_equal(self.result(found), self.exact)


def products():
    """Each kind with each type and scale, accumulators in turn; kind::f16 and mxf4 over one and two blocks, with A in
    either memory and every M, and of the others one such form."""
    for kind, entry in KINDS.items():
        scales = [(scale, vector) for scale, vectors in entry.scales.items() for vector in vectors] or [(None, None)]
        for number, a in enumerate(entry.types):
            b = entry.types[-1 - number] if entry.mixed else a
            accumulators = entry.accumulators.get(a) or entry.accumulators[""]
            group, c = 1 + number % 2, accumulators[-1 - number % len(accumulators)]
            yield tcgen05_mma(kind, entry.m[group][0], 16 * group, a, b, c, group, "smem", *scales[0])
        for scale in scales[1:]:
            yield tcgen05_mma(kind, 128, 16, scale=scale[0], vector=scale[1])
        forms = [(group, m, source) for group in (1, 2) for m in entry.m[group] for source in ("smem", "tmem")]
        for group, m, source in forms[1:] if kind in ("f16", "mxf4") else forms[-1:]:
            yield tcgen05_mma(kind, m, 16 * group, cta_group=group, a_source=source)


def name_of(atom) -> str:
    return f"{atom}-{atom.a_dtype}-{atom.b_dtype}-{atom.c_dtype}-{atom.shape_mnk[0]}-{atom.a_source}"


@pytest.mark.parametrize("atom", list(products()), ids=name_of)
def test_every_kind(atom):
    Case(atom, swizzle="32B" if atom.shape_mnk[0] > 64 else "128B").check()


@pytest.mark.parametrize("kind,a", (("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e2m3"), ("i8", "u8")))
def test_every_swizzle_and_major(kind, a):
    for swizzle in (*SPANS, "128B_ATOM_32B"):
        for majors in (("K", "K"), ("MN", "MN"), ("MN", "K")):
            try:
                case = Case(tcgen05_mma(kind, 64, 64, a), *majors, swizzle=swizzle)
            except LayoutError as error:
                wide = (kind == "tf32") != (swizzle == "128B_ATOM_32B")
                assert wide or "K" in majors, error
                continue
            case.check()


@pytest.mark.parametrize("group,n", ((1, 8), (1, 24), (1, 256), (2, 48), (2, 256)))
def test_every_width(group, n):
    atom = tcgen05_mma("f16", 128, n, c="f16", cta_group=group)
    Case(atom, swizzle="32B").check(EARLY)


@pytest.mark.parametrize("m,n", ((32, 64), (64, 64), (128, 128)))
def test_weight_stationary(m, n):
    Case(tcgen05_mma("f16", m, n, ws=True), swizzle="32B").check()


@pytest.mark.parametrize("kind,ids", (("mxf8f6f4", (3, 1)), ("mxf4", (2, 2)), ("mxf4", (0, 2))))
def test_scale_factors_anywhere_in_their_words(kind, ids):
    for group, n in ((1, 40), (2, 96)):
        m = 128 if kind == "mxf4" or group == 1 else 256
        Case(tcgen05_mma(kind, m, n, cta_group=group), ids=ids, swizzle="32B").check()


def test_the_word_negates_and_clamps():
    case = Case(tcgen05_mma("f16", 64, 16), negate_a=True)
    exact = 2 * case.m["C"] - case.exact
    assert np.array_equal(case.result(case.run()), exact)
    both = Case(tcgen05_mma("f16", 64, 16), negate_a=True, negate_b=True)
    both.check()
    clamped = Case(tcgen05_mma("i8", 64, 16), saturate=True)
    wraps = Case(tcgen05_mma("i8", 64, 16))
    for one in (clamped, wraps):
        one.m["C"][:] = 2**31 - 1
        one.bring_accumulator()
    assert np.array_equal(clamped.result(clamped.run()), np.minimum(clamped.exact, 2**31 - 1))
    assert np.array_equal(wraps.result(wraps.run()), (wraps.exact + 2**31) % 2**32 - 2**31)


def test_the_accumulator_may_be_dropped_or_halved():
    Case(tcgen05_mma("tf32", 64, 16), adds=False).check()
    case = Case(tcgen05_mma("f16", 64, 16))
    halved = case.text.replace("%idesc, %add;", "%idesc, %add, 3;")
    assert np.array_equal(case.result(case.run(halved)), case.exact - 7 * case.m["C"] / 8)


@pytest.mark.parametrize("group", (1, 2))
def test_disabled_lanes_keep_their_words(group):
    case = Case(tcgen05_mma("f16", 128 * group, 16, cta_group=group), swizzle="32B")
    mask = [0x0000FFFF, 0, 0xFFFFFFFF, 0x80000001, 1, 0, 0, 2][: 4 * group]
    setting = " ".join(f"mov.u32 %r{i}, {word};" for i, word in enumerate(mask))
    vector = "{" + ", ".join(f"%r{i}" for i in range(4 * group)) + "}"
    text = case.text.replace("  tcgen05.mma", f"  {setting}\n  tcgen05.mma")
    found = case.run(text.replace("%idesc, %add;", f"%idesc, {vector}, %add;"))
    disabled = np.array([word >> bit & 1 for word in mask for bit in range(32)], dtype=bool)[:, None]
    assert found.findings == []
    assert np.array_equal(case.result(found), np.where(disabled, case.m["C"], case.exact))


def test_products_of_one_thread_run_in_order():
    """Two into one accumulator, and one that drops it between them, under both policies."""
    case = Case(tcgen05_mma("f16", 64, 16))
    mma = re.search(r"  tcgen05\.mma.*\n", case.text)[0]
    drops = "  setp.ne.u32 %add, 0, 0;\n" + mma + "  setp.eq.u32 %add, 0, 0;\n"
    for policy in (None, EARLY):
        found = case.run(case.text.replace(mma, mma + drops + mma), policy)
        assert found.findings == [] and np.array_equal(case.result(found), 2 * (case.exact - case.m["C"]))


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
        assert found.findings == [] and np.array_equal(case.result(found), case.exact)


def test_copies_are_watched():
    found, _, _ = copied("32x128b", "warpx4")
    assert found.findings == []
    data = np.zeros((1, 8192), dtype=np.uint8)
    body = ["tcgen05.cp.cta_group::1.32x128b.warpx4 [%base], %descA;", *text_of.commit()]
    text = text_of.kernel(body, {"A": text_of.Tile(8192, 1 << 46 | 8 << 32 | 256 << 16)}, 16)
    buffers = {"T": np.zeros((128, 16), dtype=np.uint32), "A": data}
    only(run(text.replace("  @!%done bra wait;\n", ""), buffers, block=128), "race", "tensor memory of CTA")
    store = "  mov.u32 %to, smemA;\n  st.shared.b32 [%to+16], %w;\n"
    only(run(text.replace("wait:\n", store + "wait:\n"), buffers, block=128), "race", "shared memory of CTA")


def test_each_half_of_n_reads_its_copy_of_a():
    """M = 128 over two blocks: lanes 64 and up multiply the second half of N, with the A that is stored there."""
    case = Case(tcgen05_mma("f16", 128, 32, "f16", cta_group=2, a_source="tmem"))
    before = case.exact
    case.image[:, 64:, case.at["A"] : case.at["A"] + 8] = 0
    got = case.result(case.run())
    assert np.array_equal(got[:, :16], before[:, :16]) and np.array_equal(got[:, 16:], case.m["C"][:, 16:])


def test_two_tiles_of_64_rows_share_columns():
    """Layout F leaves the upper 16 lanes of each quarter free: a second tile there is another place."""
    places = Places.of(tcgen05_mma("f16", 64, 16).accumulator.layout)
    assert places.places(0, 8) & places.places(16, 8) == 0
    assert places.places(16, 8) == sum(0xFFFF << 512 * strip + 8 for strip in (1, 3, 5, 7))
    case = Case(tcgen05_mma("f16", 64, 16))
    upper = case.text.replace("mov.b32 %d, %base;", "add.u32 %d, %base, 0x100000;").replace("%add, 0, 0", "%add, 0, 0")
    case.image = np.roll(case.image, 16, axis=1)
    found = case.run(upper)
    found.arrays["T"] = np.roll(found["T"], -16, axis=1)
    assert found.findings == [] and np.array_equal(case.result(found), case.exact)


# ------------------------------------------------------------ the protocol

BASE = Case(tcgen05_mma("f16", 128, 16, "bf16"), swizzle="32B")
PAIR = Case(tcgen05_mma("f16", 256, 32, "bf16", cta_group=2), swizzle="32B")
SCALED = Case(tcgen05_mma("mxf8f6f4", 128, 16), swizzle="32B")


def broken(case: Case, old: str, new: str, policy: Policy | None = None, count: int = -1) -> Result:
    assert old in case.text
    return case.run(case.text.replace(old, new, count), policy)


def only(found: Result, kind: str, says: str) -> None:
    assert found.kinds and set(found.kinds) == {kind}, found.findings
    assert any(says in finding.message for finding in found.findings), found.findings


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;"
GIVE_UP = "  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
DEALLOC = "  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 32;\n"


def test_every_kernel_here_is_clean_under_the_strict_switch():
    for case in (BASE, PAIR, SCALED):
        case.check(STRICT)


@pytest.mark.parametrize(
    "old,new,says",
    (
        (ALLOC, ALLOC.replace("32;", "48;"), "48 columns"),
        (ALLOC, ALLOC.replace("32;", "16;"), "16 columns"),
        ("and.b32 %ta, %lane, 96;", "and.b32 %ta, %lane, 64;", "lanes 0..31 of tensor memory: warp 1 reaches 32..63"),
        (GIVE_UP, GIVE_UP + "  " + ALLOC + "\n", "has given up its permit"),
        (DEALLOC, DEALLOC.replace("%base, 32;", "%base, 64;"), "dealloc of 64 columns"),
        (DEALLOC, "  add.u32 %base, %base, 32;\n" + DEALLOC, "dealloc of 32 columns|is no tensor-memory address"),
        (DEALLOC, DEALLOC + DEALLOC, "allocated are: none"),
        ("add.u32 %at, %ta, 0;", "add.u32 %at, %ta, 0x200000;", "lanes 32..63 of tensor memory: warp 0|is no tensor"),
        ("add.u32 %at, %ta, 8;", "sub.u32 %at, %ta, 8;", "is not allocated"),
        ("mov.b32 %d, %base;", "sub.u32 %d, %base, 8;", "is not allocated"),
        ("mov.b32 %d, %base;", "add.u32 %d, %base, 24;", "this reaches|is not allocated"),
        ("tcgen05.mma.cta_group::1", "tcgen05.mma.cta_group::2", "M of kind|needs pairs of blocks"),
    ),
)
def test_what_is_an_error(old, new, says):
    with pytest.raises(EmulatorError, match=says):
        broken(BASE, old, new, count=1)


def test_a_leak_is_reported():
    only(broken(BASE, DEALLOC, ""), "exit", "ends with 32 columns allocated")


def test_allocation_waits_for_columns():
    """Warp 1 gets its columns when warp 0 gives its own back; without that nobody goes on."""
    text = """
      .reg .b32 %t, %s, %c; .reg .pred %p, %q;
      mov.u32 %t, %tid.x; mov.u32 %s, smem; setp.lt.u32 %p, %t, 32; @%p bra first;
      bar.sync 1, 64;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s+4], 512;
      ld.shared.b32 %c, [%s+4];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
      bra done;
    first:
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 256;
      ld.shared.b32 %c, [%s];
      bar.sync 1, 64;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 256;
    done:
    """
    assert run(text, block=64, shared=64, target="sm_100a").findings == []
    with pytest.raises(DeadlockError, match=r"tcgen05\.alloc"):
        kept = text.replace("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 256;", "")
        run(kept, block=64, shared=64, target="sm_100a")


def test_several_allocations():
    text = """
      .reg .b32 %s, %c<4>; .reg .b64 %g;
      mov.u32 %s, smem;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 64;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s+4], 32;
      ld.shared.b32 %c0, [%s];
      ld.shared.b32 %c1, [%s+4];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c0, 64;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 256;
      ld.shared.b32 %c2, [%s];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c1, 32;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c2, 256;
      st.global.b32 [%out], %c0; st.global.b32 [%out+4], %c1; st.global.b32 [%out+8], %c2;
    """
    out = np.zeros(3, dtype=np.uint32)
    assert run(text, {"out": out}, block=32, shared=64, target="sm_100a").findings == []
    assert out.tolist() == [448, 416, 160]


def test_a_product_by_many_threads_is_reported():
    text = BASE.text.replace("setp.ne.u32 %stop, %w, 0;", "setp.gt.u32 %stop, %w, 1;")
    text = text.replace("[%bar], 1;", "[%bar], 2;")
    only(BASE.run(text), "protocol", "is issued by 2 lanes, each for itself")


def test_a_missing_commit_is_a_deadlock():
    commit = "  " + text_of.commit()[0] + "\n"
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait"):
        broken(BASE, commit, "")


def test_reading_an_accumulator_before_the_commit_races():
    wait = "  @!%done bra wait;\n"
    only(broken(BASE, wait, ""), "race", "tensor memory of CTA (0, 0, 0), lanes 0..15")
    commit, mma = "  " + text_of.commit()[0] + "\n", re.search(r"  tcgen05\.mma.*\n", BASE.text)[0]
    only(broken(BASE, mma + commit, commit + mma), "race", "nothing orders them")


def test_products_of_two_warps_race():
    """The same product by another warp: the engine keeps only one thread's products in order."""
    two = "setp.ne.u32 %stop, %w, 0;"
    again = "and.b32 %w, %w, 31; setp.ne.u32 %stop, %w, 0; @!%stop setp.gt.u32 %stop, %lane, 32;"
    text = BASE.text.replace(two, again).replace("[%bar], 1;", "[%bar], 2;")
    only(BASE.run(text), "race", "nothing orders them")


def test_deallocation_before_the_product_has_completed_races():
    wait = "  @!%done bra wait;\n"
    reads = r"  (add.u32 %at, %ta, \d+;\n  tcgen05.ld|st.global|tcgen05.wait::ld).*\n"
    text = re.sub(reads, "", BASE.text.replace(wait, ""))
    only(BASE.run(text), "race", "tcgen05.dealloc")


def test_shared_memory_is_watched():
    only(broken(BASE, "  fence.proxy.async.shared::cta;\n", ""), "race", "no fence.proxy.async")
    for operand in "AB":
        store = f"  mov.u32 %to, smem{operand};\n  st.shared.b32 [%to+16], %w;\n"
        only(broken(BASE, "wait:\n", store + "wait:\n"), "race", "tcgen05.mma")
    short = broken(BASE, "add.u32 %i, %i, 512;", "add.u32 %i, %i, 8192;")
    only(short, "uninitialised", "never written")


def test_unwritten_tensor_memory_is_reported():
    store = re.search(r"  add.u32 %at, %ta, 8;\n  tcgen05.st.*\n", BASE.text)[0]
    only(broken(BASE, store, ""), "uninitialised", "the accumulator at lane 0, column ")
    store = re.search(rf"  add.u32 %at, %ta, {SCALED.at['SFB']};\n  tcgen05.st.*\n", SCALED.text)[0]
    only(broken(SCALED, store, ""), "uninitialised", "a scale factor of B")


def test_copies_of_scale_factors_have_to_agree():
    SCALED.image[0, 32, SCALED.at["SFA"]] ^= 1
    try:
        only(SCALED.run(), "protocol", "differs between the quarters")
    finally:
        SCALED.image[0, 32, SCALED.at["SFA"]] ^= 1


def test_descriptors_are_checked():
    mma = re.search(r"  tcgen05\.mma", BASE.text)[0]
    for bit in (14, 30, 53):
        found = broken(BASE, mma, f"  or.b64 %descA, %descA, {1 << bit:#x};\n" + mma)
        only(found, "descriptor", f"sets bits {bit},")
        assert np.array_equal(BASE.result(found), BASE.exact)
    for bits, says in ((1 << 6, "6"), (1 << 2, "sparse"), (1 << 25, "M of"), (6 << 7, "format")):
        word = BASE.word ^ bits
        with pytest.raises(EmulatorError, match=says):
            broken(BASE, f"mov.u32 %idesc, {BASE.word:#x};", f"mov.u32 %idesc, {word:#x};")
    with pytest.raises(EmulatorError, match="version"):
        broken(BASE, mma, f"  xor.b64 %descA, %descA, {1 << 46:#x};\n" + mma)
    with pytest.raises(EmulatorError, match="reaches shared offset"):
        broken(BASE, mma, "  or.b64 %descA, %descA, 0x3000;\n" + mma)
    found = broken(SCALED, "  tcgen05.mma", "  or.b32 %sfa, %sfa, 0x40000000;\n  tcgen05.mma")
    only(found, "descriptor", "says byte 1 of a word")


def test_one_group_for_a_kernel():
    found = broken(PAIR, "relinquish_alloc_permit.cta_group::2", "relinquish_alloc_permit.cta_group::1")
    only(found, "protocol", "one for all")


def test_a_pair_has_to_know_of_what_its_leader_does():
    """Without the multicast the second block waits for ever; without its own wait it reads too early."""
    with pytest.raises(DeadlockError):
        broken(PAIR, "mov.u16 %mask, 3;", "mov.u16 %mask, 1;")
    skip = "  setp.ne.u32 %first, %rank, 0;\n  @%first bra skips;\n"
    text = PAIR.text.replace("wait:\n", skip + "wait:\n")
    text = text.replace("  @!%done bra wait;\n", "  @!%done bra wait;\nskips:\n")
    found = PAIR.run(text)
    assert set(found.kinds) <= {"race", "exit"} and "race" in found.kinds
    with pytest.raises(EmulatorError, match="multicast to mask 0x5"):
        broken(PAIR, "mov.u16 %mask, 3;", "mov.u16 %mask, 5;")


def test_a_block_has_to_know_of_the_commit_before_it_ends():
    leaves = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"
    leaves += "  setp.ne.u32 %first, %rank, 0;\n  @%first bra over;\n"
    found = PAIR.run(PAIR.text.replace("wait:\n", leaves + "wait:\n"))
    assert any("CTA (1, 0, 0) ends without knowing of tcgen05.commit" in finding.message for finding in found.findings)


def test_a_commit_hands_on_what_its_thread_did():
    wait = "  @!%done bra wait;\n"
    text = BASE.text.replace("  tcgen05.commit", "  st.shared.b32 [%s], %w;\n  tcgen05.commit")
    assert BASE.run(text.replace(wait, wait + "  ld.shared.b32 %w, [%s];\n")).findings == []


def test_columns_are_fresh_when_they_are_allocated_again():
    text = """
      .reg .b32 %s, %c, %w;
      mov.u32 %s, smem;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 512;
      ld.shared.b32 %c, [%s];
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%c], %s;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 512;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 %w, [%c];
      st.global.b32 [%out], %w;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
    """
    out = np.zeros(1, dtype=np.uint32)
    assert run(text, {"out": out}, block=32, shared=64, target="sm_100a").findings == []
    assert out[0] == 0xFFFFFFFF


def test_the_strict_switch_asks_for_waits_and_fences():
    ld_wait, st_wait = "  tcgen05.wait::ld.sync.aligned;\n", "  tcgen05.wait::st.sync.aligned;\n"
    assert broken(BASE, ld_wait, "").findings == [] and broken(BASE, st_wait, "").findings == []
    with pytest.raises(EmulatorError, match=r"no tcgen05\.wait::ld has been executed since"):
        broken(BASE, ld_wait, "", STRICT)
    only(broken(BASE, st_wait, "", STRICT), "race", "tcgen05.st")
    fence = "  tcgen05.fence::after_thread_sync;\n"
    assert broken(BASE, fence, "").findings == []
    only(broken(BASE, fence, "", STRICT), "race", "nothing orders them")


@pytest.mark.parametrize(
    "old,new",
    (
        ("kind::f16", "kind::f17"),
        ("tcgen05.mma.cta", "tcgen05.mma.sp.cta"),
        ("kind::f16", "kind::f16.ashift"),
        ("kind::f16", "kind::f16.block_scale"),
        ("kind::f16", "kind::mxf8f6f4"),
        ("%idesc, %add;", "%idesc, %add, 16;"),
        ("%idesc, %add;", "%idesc, {%r0, %r1}, %add;"),
        ("tcgen05.wait::ld", "tcgen05.wait::mma"),
        ("32x32b.x8.b32", "32x32b.x4.b32"),
        ("32x32b.x8.b32", "32x32b.x3.b32"),
        ("tcgen05.mma.cta_group::1.kind::f16 ", "tcgen05.shift.cta_group::1.down "),
        ("b64 [%bar];", "multicast::cluster.b64 [%bar];"),
    ),
)
def test_unknown_forms_are_refused_at_load(old, new):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        broken(BASE, old, new)
