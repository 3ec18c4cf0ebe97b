"""wgmma in the emulator: every form against exact products, and each rule of its protocol by a text that breaks it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.atoms import MmaAtom, smem_tile, wgmma
from layoutgemm.atoms.mma.wgmma import FORMS
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.atoms.smem.tile import SPANS
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.memory import CtaSharedMemory
from layoutgemm.emulator.ops.mma.operands import check_written, products
from layoutgemm.errors import DeadlockError, EmulatorError, LayoutError, PtxError
from tests.emulator.run_ptx import Result, run
from tests.micro import values
from tests.micro import wgmma as text_of

EARLY = Policy(products="early")


def test_sums_of_products_do_not_depend_on_the_shape() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((512, 16), (16, 256)))
    for rows, columns in ((16, 8), (64, 24), (64, 256), (512, 136)):
        assert (products(a[:rows], b[:, :columns]) == products(a, b)[:rows, :columns]).all()


def random_matrices(rng, atom: MmaAtom, operand: str):
    low, high = values.range_of(atom.dtype_of(operand))
    return rng.integers(low, high + 1, size=(1, 1, *atom.tile_of(operand)))


def tile_bytes(rng, tile, offset: int, matrix):
    """The tile's bytes with a matrix at K offset `offset`, random elsewhere."""
    rows, columns = matrix.shape
    bits = values.encode(tile.dtype, matrix)
    first = np.asarray(tile.bit(np.arange(rows)[:, None], offset + np.arange(columns)[None, :]))
    data = rng.integers(0, 256, size=tile.bytes, dtype=np.uint8)
    if tile.dtype.bits < 8:
        flat = np.unpackbits(data, bitorder="little")
        for bit in range(tile.dtype.bits):
            flat[first + bit] = bits >> np.uint64(bit) & np.uint64(1)
        return np.packbits(flat, bitorder="little")
    for byte in range(tile.dtype.bytes):
        data[first // 8 + byte] = (bits >> np.uint64(8 * byte)).astype(np.uint8)
    return data


def tile_for(atom: MmaAtom, operand: str, major: str, swizzle: str, blocks: int = 1):
    rows, depth = atom.tile_of(operand)
    span = SPANS[swizzle] * 8 // atom.dtype_of(operand).bits
    extent = (rows, max(depth * blocks, span)) if major == "K" else (-(-rows // span) * span, depth * blocks)
    return smem_tile(extent, atom.dtype_of(operand), major, swizzle)


class Case:
    """One product: its text, its inputs, and what it gives exactly."""

    def __init__(self, atom: MmaAtom, major_a="K", major_b="K", swizzle_a="128B", swizzle_b="128B", step=0, seed=0):
        rng = np.random.default_rng(seed)
        self.atom = atom
        self.matrices = {operand: random_matrices(rng, atom, operand) for operand in "ABC"}
        self.tiles, self.inputs = {}, {}
        for operand, major, swizzle in (("A", major_a, swizzle_a), ("B", major_b, swizzle_b)):
            if operand == "A" and atom.a_source == "rmem":
                continue
            tile = tile_for(atom, operand, major, swizzle, step + 1)
            described = derive(tile, atom, operand)
            depth = atom.tile_of(operand)[1]
            matrix = self.matrices[operand][0, 0]
            if tile.extent[0] > matrix.shape[0]:
                matrix = np.vstack([matrix, np.zeros((tile.extent[0] - len(matrix), depth), dtype=np.int64)])
            self.tiles[operand] = text_of.Tile(tile.bytes, described.word, described.k_steps[step], major == "MN")
            self.inputs[operand] = tile_bytes(rng, tile, step * depth, matrix)
        for operand in "ABC":
            if operand not in self.inputs:
                self.inputs[operand] = values.pack(atom, operand, self.matrices[operand])[0]
        self.text = text_of.kernel(atom, self.tiles.get("A"), self.tiles["B"])

    def run(self, text: str | None = None, policy: Policy | None = None, block: int = 128) -> Result:
        buffers = {name: self.inputs[name].copy() for name in "ABC"}
        buffers["D"] = np.zeros((128, self.atom.registers("D")), dtype=np.uint32)
        return run(text or self.text, buffers, block=block, policy=policy)

    def result(self, found: Result):
        return values.unpack(self.atom, "D", found["D"][None])[0, 0]

    @property
    def exact(self):
        m = self.matrices
        return values.multiply(self.atom, m["A"], m["B"], m["C"])[0, 0]

    def check(self, policy: Policy | None = None) -> None:
        found = self.run(policy=policy)
        assert found.findings == []
        assert np.array_equal(self.result(found), self.exact), self.text


# ------------------------------------------------------------ results


def forms():
    """Every type, accumulator and source, at the smallest N and one other."""
    for form in FORMS:
        for a in form.types:
            for b in form.types:
                for c in form.accumulators:
                    for source in ("smem", "rmem"):
                        if form.types[0] in ("bf16", "f16") and a != b:
                            continue
                        for n in (8, 24) if a in ("f16", "i8") else (8,):
                            yield wgmma(n, a, b, c, source)


@pytest.mark.parametrize("atom", list(forms()), ids=lambda atom: f"{atom}-{atom.a_source}")
def test_every_form(atom):
    Case(atom).check()


@pytest.mark.parametrize("dtype", ("bf16", "tf32", "e4m3", "i8", "b1"))
def test_every_swizzle_of_k_major_operands(dtype):
    ran = 0
    for swizzle in SPANS:
        for step in (0, 1):
            try:
                case = Case(wgmma(16, dtype), swizzle_a=swizzle, swizzle_b=swizzle, step=step)
            except LayoutError:
                assert swizzle == "none" or step  # a second step may be no 16 bytes further
                continue
            case.check(EARLY if step else None)
            ran += 1
    assert ran >= 6


@pytest.mark.parametrize("source", ("smem", "rmem"))
def test_every_swizzle_of_transposed_operands(source):
    for swizzle in SPANS:
        for majors in (("MN", "MN"), ("K", "MN"), ("MN", "K")):
            if source == "smem" or majors[0] == "K":
                Case(wgmma(64, "f16", a_source=source), *majors, swizzle_a=swizzle, swizzle_b=swizzle, step=1).check()


@pytest.mark.parametrize("n", (8, 40, 64, 136, 256))
def test_every_width_of_the_accumulator(n):
    for policy in (None, EARLY):
        Case(wgmma(n, "f16", c="f16"), seed=n).check(policy)


def test_integers_wrap_or_clamp():
    for saturate in (False, True):
        case = Case(wgmma(8, "i8", saturate=saturate))
        case.matrices["C"][:] = 2**31 - 1
        case.matrices["C"][..., 1] = -(2**31)
        case.inputs["C"] = values.pack(case.atom, "C", case.matrices["C"])[0]
        case.check()
        assert (case.exact == 2**31 - 1).any() and ((case.exact < -(2**31) + 1000).any())


def test_an_f16_accumulator_is_rounded():
    case = Case(wgmma(8, "f16", c="f16"))
    case.matrices["C"][:] = 2048
    case.inputs["C"] = values.pack(case.atom, "C", case.matrices["C"])[0]
    got = case.result(case.run())
    assert np.array_equal(got, case.exact.astype(np.float16))
    assert (got != case.exact).any()


def test_immediates_scale_and_the_predicate_drops_the_accumulator():
    case = Case(wgmma(16, "bf16"))
    negated = case.text.replace("%add, 1, 1", "%add, -1, 1")
    m = case.matrices
    product = values.multiply(case.atom, m["A"], m["B"], 0 * m["C"])[0, 0]
    assert np.array_equal(case.result(case.run(negated)), m["C"][0, 0] - product)
    assert np.array_equal(case.result(case.run(negated.replace("-1, 1", "-1, -1"))), case.exact)
    dropped = case.text.replace("setp.eq.u32 %add, 0, 0", "setp.ne.u32 %add, 0, 0")
    assert np.array_equal(case.result(case.run(dropped)), product)


def test_a_predicate_that_drops_needs_no_values():
    case = Case(wgmma(8, "bf16"))
    text = case.text.replace("setp.eq.u32 %add, 0, 0", "setp.ne.u32 %add, 0, 0")
    text = re.sub(r"ld.global.b32 %c\d+.*\n", "", text)
    m = case.matrices
    assert np.array_equal(case.result(case.run(text)), values.multiply(case.atom, m["A"], m["B"], 0 * m["C"])[0, 0])
    found = case.run(re.sub(r"ld.global.b32 %c\d+.*\n", "", case.text))
    assert set(found.kinds) == {"uninitialised"} and "register %c0 is read and was never" in found.findings[0].message
    assert found.findings[0].orders.startswith("The first product of a tile does not add")


def mma(case: Case) -> str:
    return re.search(r"  wgmma\.mma_async.*\n", case.text)[0]


@pytest.mark.parametrize("policy", (None, EARLY), ids=("late", "early"))
def test_products_of_one_accumulator_run_in_order(policy):
    """Three of them, in two groups, of which the first is waited for early; scale-d drops what came before."""
    case = Case(wgmma(16, "f16"))
    one = mma(case)
    drops = "  setp.ne.u32 %add, 0, 0;\n" + one + "  setp.eq.u32 %add, 0, 0;\n"
    text = case.text.replace(one, one + drops + "  wgmma.commit_group.sync.aligned;\n" + one).replace(
        "wait_group.sync.aligned 0", "wait_group.sync.aligned 1;\n  wgmma.wait_group.sync.aligned 0"
    )
    found = case.run(text, policy)
    m = case.matrices
    product = values.multiply(case.atom, m["A"], m["B"], 0 * m["C"])[0, 0]
    assert found.findings == [] and np.array_equal(case.result(found), 2 * product)


def test_late_products_read_at_the_wait():
    """A store between issue and wait is a race; a late product sees it, an early one does not."""
    case = Case(wgmma(8, "bf16"))
    stored = "  bar.sync 0;\n  mov.u32 %w, 0;\n  st.shared.b32 [%sA], %w;\n"
    text = case.text.replace("  wgmma.wait_group", stored + "  wgmma.wait_group")
    late, early = case.run(text), case.run(text, EARLY)
    assert "race" in late.kinds and "race" in early.kinds
    assert np.array_equal(case.result(early), case.exact)
    assert not np.array_equal(case.result(late)[0], case.exact[0])
    assert np.array_equal(case.result(late)[1:], case.exact[1:])


def test_a_later_group_stays_in_flight():
    """wait_group 1 runs the first group alone: the second reads what is stored after it."""
    case = Case(wgmma(8, "bf16"))
    one, zero = mma(case), "  bar.sync 0;\n  mov.u32 %w, 0;\n  st.shared.b32 [%sA], %w;\n"
    other = one.replace("%c", "%e")
    text = case.text.replace(one, one + "  wgmma.commit_group.sync.aligned;\n  setp.ne.u32 %add, 0, 0;\n" + other)
    waits = "  wgmma.wait_group.sync.aligned 1;\n" + zero + "  wgmma.wait_group.sync.aligned 0;\n"
    text = text.replace("  wgmma.wait_group.sync.aligned 0;\n", waits)
    text = text.replace("%add;\n", "%add;\n  .reg .b32 %e<4>;\n", 1)
    assert np.array_equal(case.result(case.run(text)), case.exact)
    second = text.replace("], %c", "], %e")
    m = case.matrices
    product = values.multiply(case.atom, m["A"], m["B"], 0 * m["C"])[0, 0]
    late, early = case.result(case.run(second)), case.result(case.run(second, EARLY))
    assert np.array_equal(early, product) and not np.array_equal(late[0], product[0])
    same = second.replace("%e", "%c").replace("  .reg .b32 %c<4>;\n", "", 1)  # the same of one accumulator
    late, early = case.result(case.run(same)), case.result(case.run(same, EARLY))
    assert np.array_equal(early, product) and not np.array_equal(late[0], product[0])


def test_registers_in_flight_keep_their_places():
    """The accumulator's next product must name them in the same order."""
    case = Case(wgmma(8, "bf16"))
    one = mma(case)
    text = case.text.replace(one, one + one.replace("%c1, %c2", "%c2, %c1"))
    with pytest.raises(EmulatorError, match="register %c2 does not hold register 1 of the accumulator"):
        case.run(text)


def test_moves_copy_registers_in_flight():
    case = Case(wgmma(8, "bf16"))
    moved = "  mov.b32 %w, %c1;\n"
    text = case.text.replace("  wgmma.wait_group", moved + "  wgmma.wait_group")
    text = text.replace("[%g+4], %c1", "[%g+4], %w")
    found = case.run(text)
    assert found.findings == [] and np.array_equal(case.result(found), case.exact)


def test_halves_of_f16_pairs_may_be_moved_in_flight():
    """Taken apart and joined between two products, as compilers do; joined otherwise, it is computing."""
    case = Case(wgmma(8, "f16", c="f16"))
    one = mma(case)
    apart = "  .reg .b16 %h<2>; mov.b32 {%h0, %h1}, %c1;\n"
    join = "  mov.b32 %w, {%h0, %h1};\n"
    again = one.replace("%c1", "%w")
    m = case.matrices
    twice = case.exact + values.multiply(case.atom, m["A"], m["B"], 0 * m["C"])[0, 0]
    found = case.run(case.text.replace(one, one + apart + join + again).replace("[%g+4], %c1", "[%g+4], %w"))
    assert found.findings == [] and np.array_equal(case.result(found), twice)
    wait = "  wgmma.wait_group.sync.aligned 0;\n"
    late = case.text.replace(wait, apart + wait + join)
    found = case.run(late.replace("[%g+4], %c1", "[%g+4], %w"))
    assert found.findings == [] and np.array_equal(case.result(found), case.exact)
    for wrong in (join.replace("%h0, %h1", "%h1, %h0"), "  add.f16 %h0, %h0, %h1;\n", "  and.b32 %w, %c1, 255;\n"):
        with pytest.raises(EmulatorError, match="in flight"):
            case.run(case.text.replace(one, one + apart + wrong))


# ------------------------------------------------------------ the protocol


def broken(case: Case, old: str, new: str, policy: Policy | None = None) -> Result:
    assert old in case.text
    return case.run(case.text.replace(old, new), policy)


BASE = Case(wgmma(8, "bf16"))
REGISTERS = Case(wgmma(8, "bf16", a_source="rmem"))


def test_a_missing_fence_is_reported():
    found = broken(BASE, "  wgmma.fence.sync.aligned;\n", "")
    assert found.kinds == ["protocol"] and "no wgmma.fence" in found.findings[0].message
    one = mma(BASE)
    again = one.replace("%c0", "%w")  # other registers, after results came into registers
    text = "  wgmma.wait_group.sync.aligned 0;\n  mov.b32 %w, 0;\n" + again + "  wgmma.commit_group.sync.aligned;\n"
    text += "  wgmma.wait_group.sync.aligned 0;\n"
    (lint,) = broken(BASE, "  wgmma.wait_group.sync.aligned 0;\n", text).findings
    assert lint.kind == "lint" and "Policy(register_strict=True)" in lint.message and "wgmma.fence" in lint.orders
    found = broken(BASE, "  wgmma.wait_group.sync.aligned 0;\n", text, Policy(register_strict=True))
    assert found.kinds == ["protocol"] and "no wgmma.fence" in found.findings[0].message
    computed = text.replace("mov.b32 %w, 0", "add.u32 %w, %c1, 0")
    assert broken(BASE, "  wgmma.wait_group.sync.aligned 0;\n", computed).kinds == ["protocol"]


def test_registers_computed_after_the_fence_are_reported_but_not_moved_ones():
    after = "  wgmma.fence.sync.aligned;\n"
    found = broken(BASE, after, after + "  add.u32 %c2, %c2, 0;\n")
    assert found.kinds == ["protocol"] and "register %c2 of the product is written after" in found.findings[0].message
    assert broken(BASE, after, after + "  mov.b32 %c2, 0;\n").kinds == []
    found = broken(BASE, after, after + "  ld.shared.b32 %c2, [%sA];\n")
    assert found.kinds == ["protocol"]
    found = broken(REGISTERS, after, after + "  add.u32 %a1, %a1, 0;\n")
    assert found.kinds == ["protocol"] and "register %a1 of the product" in found.findings[0].message


@pytest.mark.parametrize(
    "line",
    (
        "add.u32 %w, %c1, 1;",
        "setp.eq.u32 %stop, %c1, 0;",
        "selp.b32 %w, %c1, %w, %odd;",
        "st.shared.b32 [%sA], %c1;",
        "shfl.sync.idx.b32 %w, %c1, 0, 31, -1;",
        "cvt.rn.bf16x2.f32 %w, %c1, %c1;",
    ),
)
def test_computing_with_an_accumulator_in_flight_is_an_error(line):
    extra = "  .reg .pred %odd; and.b32 %i, %lane, 1; setp.eq.u32 %odd, %i, 1;\n  "
    with pytest.raises(EmulatorError, match=r"in the accumulator of PTX line \d+: wgmma.mma_async.*in flight"):
        broken(BASE, "  wgmma.wait_group", extra + line + "\n  wgmma.wait_group")


def test_computing_with_a_in_flight_is_reported():
    """Products leave A as it is: the run goes on with its value. A shuffle of it is an error."""
    add = "  add.u32 %w, %a1, 1;\n  add.u32 %w, %w, %a1;\n  wgmma.wait_group"
    found = broken(REGISTERS, "  wgmma.wait_group", add)
    assert found.kinds == ["protocol"]
    assert re.search(r"in operand A of PTX line \d+: wgmma.mma_async\S+, which is in flight", found.findings[0].message)
    assert np.array_equal(REGISTERS.result(found), REGISTERS.exact)
    with pytest.raises(EmulatorError, match=r"in operand A of PTX line \d+: wgmma.mma_async"):
        broken(REGISTERS, "  wgmma.wait_group", "  shfl.sync.idx.b32 %w, %a1, 0, 31, -1;\n  wgmma.wait_group")


def test_writing_registers_in_flight_is_reported():
    found = broken(REGISTERS, "  wgmma.wait_group", "  add.u32 %a1, %w, 1;\n  wgmma.wait_group")
    assert found.kinds == ["protocol"] and "register %a1 of A is written while" in found.findings[0].message
    later = "  add.u32 %a1, %w, 1;\n  wgmma.fence.sync.aligned;\n  wgmma.wait_group"
    assert broken(REGISTERS, "  wgmma.wait_group", later).kinds == ["protocol"]
    found = broken(BASE, "  wgmma.wait_group", "  add.u32 %c1, %w, 1;\n  wgmma.wait_group")
    assert found.kinds == ["protocol"] and "register %c1 of its accumulator" in found.findings[0].message


def test_products_may_share_registers_of_a():
    one = mma(REGISTERS)
    found = broken(REGISTERS, one, one + "  wgmma.commit_group.sync.aligned;\n" + one)
    m = REGISTERS.matrices
    product = values.multiply(REGISTERS.atom, m["A"], m["B"], 0 * m["C"])[0, 0]
    assert found.findings == [] and np.array_equal(REGISTERS.result(found), REGISTERS.exact + product)


def test_registers_of_a_computed_again_for_the_next_product_in_flight_are_reported():
    """A loop that converts the next K tile with one group in flight: wrong on an H100."""
    one, again = mma(REGISTERS), "  add.u32 %a1, %w, 1;\n  wgmma.fence.sync.aligned;\n"
    commit = "  wgmma.commit_group.sync.aligned;\n"
    found = broken(REGISTERS, one, one + commit + again + one)
    assert set(found.kinds) == {"protocol"}
    assert all("register %a1 of A is written while" in each.message for each in found.findings)
    waits = "  wgmma.wait_group.sync.aligned 0;\n"
    assert broken(REGISTERS, one, one + commit + waits + again + one).kinds == []


def test_without_a_commit_nothing_is_waited_for():
    with pytest.raises(EmulatorError, match="in flight"):
        broken(BASE, "  wgmma.commit_group.sync.aligned;\n", "")
    with pytest.raises(EmulatorError, match="in flight"):
        broken(BASE, "wait_group.sync.aligned 0", "wait_group.sync.aligned 1")
    text = re.sub(r"  st.global.*\n", "", BASE.text.replace("  wgmma.wait_group.sync.aligned 0;\n", ""))
    assert BASE.run(text).kinds == ["exit"]


def test_warps_that_differ_are_reported():
    differs = "  shr.u32 %i, %lane, 5; cvt.u64.u32 %o, %i; add.u64 %descB, %descB, %o;\n"
    found = broken(BASE, "  wgmma.fence", differs + "  wgmma.fence")
    assert found.kinds[0] == "protocol" and "different operands" in found.findings[0].message
    drops = "  setp.gt.u32 %add, %lane, 31;\n"
    found = broken(BASE, "  wgmma.fence", drops + "  wgmma.fence")
    assert found.kinds == ["protocol"]
    one = mma(BASE)
    jump = "  setp.gt.u32 %stop, %lane, 31;\n  @%stop bra other;\n" + one + "  bra same;\nother:\n" + one + "same:\n"
    with pytest.raises(EmulatorError, match="issue different products"):
        broken(BASE, one, jump)


def test_four_warps_have_to_issue():
    skips = "  setp.lt.u32 %stop, %lane, 32;\n  @%stop bra over;\n"
    one = mma(BASE)
    with pytest.raises(DeadlockError, match=r"wgmma\.wait_group"):
        broken(BASE, one, skips + one + "over:\n")
    ends = "  setp.lt.u32 %stop, %lane, 32;\n  @%stop ret;\n"
    text = re.sub(r"  st.global.*\n", "", BASE.text.replace("  wgmma.wait_group.sync.aligned 0;\n", ""))
    found = BASE.run(text.replace(one, ends + one))
    assert "protocol" in found.kinds or "exit" in found.kinds
    with pytest.raises(EmulatorError, match="in no whole warpgroup: the block has 2 warps"):
        BASE.run(block=64)


def test_a_diverged_warp_is_reported():
    one = mma(BASE)
    with pytest.raises(EmulatorError):
        broken(BASE, one, "  setp.eq.u32 %stop, %lane, 7;\n  @!%stop " + one.strip() + "\n")


def test_descriptor_bits_outside_the_fields_are_reported():
    for bit in (14, 30, 46, 52):
        found = broken(BASE, "  wgmma.fence", f"  or.b64 %descA, %descA, {1 << bit:#x};\n  wgmma.fence")
        assert found.kinds == ["descriptor"] and f"sets bits {bit}," in found.findings[0].message
        assert np.array_equal(BASE.result(found), BASE.exact)


def test_rank_bits_in_a_descriptor_are_reported():
    """The window of block 1 begins at 1 << 24: without a mask that bit reaches the leading offset, which is unused."""
    rank = f"  or.b64 %descA, %descA, {1 << 20:#x};\n  wgmma.fence"
    buffers = {name: np.tile(BASE.inputs[name], 2) for name in "AB"} | {"C": np.vstack([BASE.inputs["C"]] * 2)}
    buffers["D"] = np.zeros((256, 4), dtype=np.uint32)
    found = run(BASE.text.replace("  wgmma.fence", rank), buffers, block=128, grid=2, cluster=2)
    assert found.kinds == ["descriptor"] and "the block's rank 1, reach leading_bytes" in found.findings[0].message
    assert found.findings[0].cta == (1, 0, 0)
    assert np.array_equal(found["D"][:128], found["D"][128:])


def test_a_descriptor_beyond_shared_memory_is_an_error():
    with pytest.raises(EmulatorError, match="reaches shared offset"):
        broken(BASE, "  wgmma.fence", "  or.b64 %descA, %descA, 0x3000;\n  wgmma.fence")


def test_descriptors_differ_between_lanes():
    with pytest.raises(EmulatorError, match="lanes have different values"):
        broken(BASE, "  wgmma.fence", "  cvt.u64.u32 %o, %lane; add.u64 %descB, %descB, %o;\n  wgmma.fence")


def test_reading_unwritten_shared_memory_is_reported():
    found = broken(BASE, "add.u32 %i, %i, 512;", "add.u32 %i, %i, 4096;")
    assert set(found.kinds) == {"uninitialised"} and "never written" in found.findings[0].message


def test_generic_writes_need_a_proxy_fence_and_a_barrier():
    found = broken(BASE, "  fence.proxy.async.shared::cta;\n", "")
    assert found.kinds == ["race"] and "no fence.proxy.async" in found.findings[0].message
    found = broken(BASE, "  bar.sync 0;\n", "")
    assert found.kinds and set(found.kinds) <= {"race", "uninitialised"}
    assert any("nothing orders them" in f.message for f in found.findings)


def test_the_fence_may_stand_behind_the_barrier() -> None:
    """Triton's order is st.shared, bar.sync, fence, wgmma: right by PTX, and lint since the writers do not fence."""
    writers = "  fence.proxy.async.shared::cta;\n  bar.sync 0;\n"
    late = "  bar.sync 0;\n  fence.proxy.async.shared::cta;\n"
    found = broken(BASE, writers, late)
    assert set(found.kinds) == {"lint"} and 'Policy(fences="writers")' in found.findings[0].message
    assert set(broken(BASE, writers, late, Policy(fences="writers")).kinds) == {"race"}
    # One thread's fence is for the path through that thread.
    one = late.replace("  fence", "  setp.eq.u32 %stop, %tid.x, 0;\n  @%stop fence")
    assert "race" in broken(BASE, writers, one).kinds


@pytest.mark.parametrize("operand", "AB")
def test_a_write_after_the_proxy_fence_is_not_seen(operand):
    found = broken(BASE, "  bar.sync 0;\n", f"  st.shared.b32 [%s{operand}], %w;\n  bar.sync 0;\n")
    assert any("wgmma" in f.text and "no fence.proxy.async" in f.message for f in found.findings)


def test_every_byte_has_to_be_written():
    shared, said = CtaSharedMemory(64), []
    shared.written[:] = True
    chunks = np.array([[0, 1], [2, 3]])

    def report(kind, message):
        said.append((kind, message))

    shared.written[[28, 47]] = False
    check_written(shared, chunks, "b6x16_p32", report)  # the last four bytes of each chunk are padding
    assert said == []
    check_written(shared, chunks, "packed", report)
    shared.written[28] = True
    check_written(shared, chunks, "packed", report)
    assert [message.split()[4] for _, message in said] == ["0x1c,", "0x2f,"]


def test_a_write_after_one_warps_wait_races_with_the_others():
    """Each warp knows of its own quarter of A: warp 0 may write that after its wait, and no other."""
    after = "  wgmma.wait_group.sync.aligned 0;\n"
    one_warp = "  setp.gt.u32 %stop, %lane, 31;\n  @%stop bra done;\n"
    own = broken(BASE, after, after + one_warp + "  st.shared.b32 [%sA], %w;\ndone:\n")
    other = broken(BASE, after, after + one_warp + "  st.shared.b32 [%sA+2048], %w;\ndone:\n")
    shared = broken(BASE, after, after + one_warp + "  st.shared.b32 [%sB], %w;\ndone:\n")
    assert (own.kinds, other.kinds, shared.kinds) == ([], ["race"], ["race"])


def test_a_copy_over_b_after_one_warps_wait_is_what_pipelines_do():
    """CUTLASS's consumers release a buffer by one thread a warpgroup: lint, and by PTX's word a race."""
    after = "  wgmma.wait_group.sync.aligned 0;\n"
    copy = """  .shared .align 8 .b64 bar; .reg .b32 %bar; mov.u32 %bar, bar;
  setp.ne.u32 %stop, %lane, 0; @%stop bra done;
  mbarrier.init.shared.b64 [%bar], 1; fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 16; ld.param.u64 %g, [kernel_B];
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%sB], [%g], 16, [%bar];
wait: mbarrier.try_wait.parity.shared.b64 %stop, [%bar], 0; @!%stop bra wait;
done:
"""
    known, writers = broken(BASE, after, after + copy), Policy(fences="writers")
    assert known.kinds == ["lint"] and 'Policy(fences="writers")' in known.findings[0].message
    assert "race" in broken(BASE, after, after + copy, writers).kinds
    early = copy.replace("done:", "done:" + after)  # no warp has waited
    assert "race" in broken(BASE, after, early).kinds
    everyone = broken(BASE, after, f"{after}  fence.proxy.async.shared::cta; bar.sync 0;\n{copy}", writers)
    assert everyone.kinds == []


def test_unknown_forms_are_refused_at_load():
    for old, new in (
        ("mma_async.sync", "mma_async.sp.sync"),
        ("m64n8k16", "m64n8k8"),
        ("m64n8k16", "m64n12k16"),
        ("%add, 1, 1", "%add, 2, 1"),
        ("%add, 1, 1, 0, 0", "%add, 1, 1"),
        ("f32.bf16.bf16", "f16.bf16.bf16"),
        ("f32.bf16.bf16", "f32.bf16.f16"),
        ("{%c0, ", "{"),
        ("wgmma.fence.sync", "wgmma.fence.cta.sync"),
    ):
        with pytest.raises(PtxError, match=r"PTX line \d+"):
            broken(BASE, old, new)
