"""tcgen05.mma in the emulator: every kind, type, shape and place of its operands against exact products."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.atoms.mma.tcgen05 import KINDS, tcgen05_mma
from layoutgemm.atoms.smem.tile import SPANS
from layoutgemm.emulator.ops.tcgen05.tmem import TmemCoordinates
from layoutgemm.errors import EmulatorError, LayoutError
from tests.emulator.ops.tcgen05.case import EARLY, Case, only


def products():
    """Each kind with each type and scale, accumulators in turn. kind::f16 and mxf4 have one and two blocks, A in either
    memory and every M. The other kinds have one such form."""
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


def sparse_products():
    """Each kind with a sparse A, in forms that take turns: its memory, one block and two, .ws with each M."""
    forms = ((128, 1, "smem", False), (256, 2, "smem", False), (128, 1, "tmem", False))
    stationary = ((32, 1, "smem", True), (64, 1, "tmem", True))
    for number, (kind, entry) in enumerate(KINDS.items()):
        chosen = (forms[number % 3], *(() if entry.scales else (stationary[number % 2],)))
        for m, group, source, ws in (*forms, *stationary) if kind == "f16" else chosen:
            vectors = next(iter(entry.scales.values()), (None,))
            n = 64 if ws else 32
            yield tcgen05_mma(kind, m, n, cta_group=group, a_source=source, vector=vectors[-1], ws=ws, sparse=True)


@pytest.mark.parametrize("atom", list(sparse_products()), ids=name_of)
def test_every_sparse_kind(atom):
    Case(atom, sparsity_selector=int(atom.kind in ("f16", "tf32")), seed=1).check()


def test_sparse_metadata_is_checked():
    sparse = Case(tcgen05_mma("f16", 128, 16, sparse=True))
    sparse.check()
    sparse.image[0, 3, sparse.at["META"]] &= 0xFFFF0FFF  # group 3 of row 3
    only(sparse.run(), "protocol", "metadata of row 3, group 3 of A is 0b0000; PTX gives a meaning to 0b0100, 0b1000")
    with pytest.raises(EmulatorError, match="names a pair of columns"):
        sparse.run(sparse.text.replace("%descB, [%at],", "%descB, [%at+1],"))
    with pytest.raises(EmulatorError, match="sparsity selector 2: kind::f16 selects one of two columns"):
        Case(sparse.atom, sparsity_selector=2).run()
    with pytest.raises(
        EmulatorError, match=r"M = 64, cta_group::1: no layout of sparse metadata over half of the lanes"
    ):
        sparse.run(sparse.text.replace(f"{sparse.word:#x}", f"{sparse.word - (4 << 24):#x}"))
    with pytest.raises(EmulatorError, match=r"says that A is dense; the instruction is tcgen05\.mma\.sp"):
        sparse.run(sparse.text.replace(f"{sparse.word:#x}", f"{sparse.word & ~4:#x}"))
    unread = sparse.text.replace("%descB, [%at],", "%descB, [%at+4],")
    assert "0b0000" in sparse.run(unread).findings[0].message


@pytest.mark.parametrize("kind,a", (("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e2m3"), ("i8", "u8")))
def test_every_swizzle_and_major(kind, a):
    ran = 0
    for swizzle in (*SPANS, "128B_ATOM_32B"):
        for majors in (("K", "K"), ("MN", "MN"), ("MN", "K")):
            try:
                case = Case(tcgen05_mma(kind, 64, 64, a), *majors, swizzle=swizzle)
            except LayoutError as error:
                wide = (kind == "tf32") != (swizzle == "128B_ATOM_32B")
                assert wide or "K" in majors, error
                continue
            case.check()
            ran += 1
    assert ran >= 4


@pytest.mark.parametrize("group,n", ((1, 8), (1, 24), (1, 256), (2, 48), (2, 256)))
def test_every_width(group, n):
    atom = tcgen05_mma("f16", 128, n, c="f16", cta_group=group)
    Case(atom, swizzle="32B").check(EARLY)


@pytest.mark.parametrize("m,n", ((32, 64), (64, 64), (128, 128)))
def test_weight_stationary(m, n):
    Case(tcgen05_mma("f16", m, n, ws=True), swizzle="32B").check()


@pytest.mark.parametrize("kind,a", (("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e2m1"), ("i8", "u8")))
@pytest.mark.parametrize("m", (32, 64, 128))
def test_weight_stationary_with_a_in_tensor_memory(kind, a, m):
    Case(tcgen05_mma(kind, m, 64, a, a_source="tmem", ws=True), swizzle="32B").check()


def test_weight_stationary_parts_of_n_read_their_copies_of_a():
    """FlashMLA stores two halves of K as the copies of A: one product adds two products of half the columns."""
    for m, parts in ((64, 2), (32, 4)):
        case = Case(tcgen05_mma("f16", m, 64, "bf16", a_source="tmem", ws=True))
        before, columns = case.exact, slice(case.at["A"], case.at["A"] + 8)
        case.image[:, m : 2 * m, columns] = 0
        got, width = case.result(case.run()), 64 // parts
        kept = np.ones(64, bool)
        kept[width : 2 * width] = False
        assert np.array_equal(got[:, kept], before[:, kept]), m
        assert np.array_equal(got[:, ~kept], case.m["C"][:, ~kept]), m


def test_a_zero_column_mask_without_columns():
    """PTX ISA, "Zero-Column Mask Descriptor": bit 39 makes a mask, the bits from 56 shift. CUTLASS passes 0."""
    case = Case(tcgen05_mma("f16", 64, 64, ws=True), swizzle="32B")
    for mask in (0, 0xFF << 40):
        assert np.array_equal(case.result(case.run(case.text.replace("%add;", f"%add, {mask};"))), case.exact)
    for mask in (1 << 39, 1 << 56):
        with pytest.raises(EmulatorError, match=f"the zero-column mask {mask:#x} zeroes or shifts columns of B"):
            case.run(case.text.replace("%add;", f"%add, {mask};"))


@pytest.mark.parametrize("kind,ids", (("mxf8f6f4", (3, 1)), ("mxf4", (2, 2)), ("mxf4", (0, 2))))
def test_scale_factors_anywhere_in_their_words(kind, ids):
    for group, n in ((1, 40), (2, 96)):
        m = 128 if kind == "mxf4" or group == 1 else 256
        Case(tcgen05_mma(kind, m, n, cta_group=group), ids=ids, swizzle="32B").check()


@pytest.mark.parametrize("kind", ("mxf4", "mxf4nvf4"))
def test_the_sparsity_version_is_a_lint_and_changes_nothing(kind):
    case = Case(tcgen05_mma(kind, 128, 40), swizzle="32B")
    found = case.run(case.text.replace(f"{case.word:#x}", f"{case.word | 1 << 12:#x}"))
    only(found, "lint", "sets bit 12, the sparsity version")
    assert np.array_equal(case.result(found), case.exact)


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


def test_each_half_of_n_reads_its_copy_of_a():
    """M = 128 over two blocks: lanes 64 and up multiply the second half of N, with the A that is stored there."""
    case = Case(tcgen05_mma("f16", 128, 32, "f16", cta_group=2, a_source="tmem"))
    before = case.exact
    case.image[:, 64:, case.at["A"] : case.at["A"] + 8] = 0
    got = case.result(case.run())
    assert np.array_equal(got[:, :16], before[:, :16]) and np.array_equal(got[:, 16:], case.m["C"][:, 16:])


def test_two_tiles_of_64_rows_share_columns():
    """Layout F leaves the upper 16 lanes of each quarter free: a second tile there is another place."""
    places = TmemCoordinates.of(tcgen05_mma("f16", 64, 16).accumulator.layout)
    assert places.places(0, 8) & places.places(16, 8) == 0
    assert places.places(16, 8) == sum(0xFFFF << 512 * strip + 8 for strip in (1, 3, 5, 7))
    case = Case(tcgen05_mma("f16", 64, 16))
    upper = case.text.replace("mov.b32 %d, %base;", "add.u32 %d, %base, 0x100000;").replace("%add, 0, 0", "%add, 0, 0")
    case.image = np.roll(case.image, 16, axis=1)
    found = case.run(upper)
    found.arrays["T"] = np.roll(found["T"], -16, axis=1)
    assert found.findings == [] and np.array_equal(case.result(found), case.exact)
