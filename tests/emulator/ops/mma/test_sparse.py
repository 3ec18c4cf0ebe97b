"""Sparse products of a warp and of a warpgroup: every form against a dense product over random metadata."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import mma_sync, wgmma
from layoutgemm.atoms.mma.base import MmaAtom
from layoutgemm.atoms.mma.wgmma import FORMS as WGMMA_FORMS
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.atoms.smem.tile import SPANS
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.ops.mma.sparse import of_full_depth
from layoutgemm.errors import LayoutError, PtxError
from tests.emulator.ops.mma.test_sync import matrix_of, random_values, registers_of
from tests.emulator.ops.mma.test_wgmma import random_matrices, tile_bytes, tile_for
from tests.emulator.run_ptx import Result, run
from tests.micro import values
from tests.micro import wgmma as text_of_wgmma

# Where a lane's metadata lie, (lane, value along K) -> row + 16*k, with modes of stride 0 where a selector chooses.
# Sources: cute/atom/mma_traits_sm90_gmma_sparse.hpp and mma_traits_sm120_sparse.hpp; the half as deep ones by PTX ISA,
# "mma.sp": four, two or one of the threads of a quad contribute.
PLACES = {
    ("tf32", 8): Layout(((4, 8), (8, 2)), ((0, 1), (16, 8))),
    ("tf32", 16): Layout(((2, 2, 8), (8, 2)), ((128, 0, 1), (16, 8))),
    (16, 16): Layout(((4, 8), (16, 2)), ((0, 1), (16, 8))),
    (16, 32): Layout(((2, 2, 8), (16, 2)), ((256, 0, 1), (16, 8))),
    (8, 32): Layout(((2, 2, 8), 32), ((8, 0, 1), 16)),
    (8, 64): Layout(((2, 2, 8), 32), ((8, 512, 1), 16)),
    (4, 64): Layout(((2, 2, 8), 64), ((8, 0, 1), 16)),
    (4, 128): Layout(((2, 2, 8), 64), ((8, 1024, 1), 16)),
}
PAIRS = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)
FORMS = [
    mma_sync((16, 8, k), a, b, c, saturate=saturate, kind=kind, scale=scale, vector=vector)
    for types, depths, accumulators, kind, scale, vector in (
        (("f16",), (8, 16), ("f16", "f32"), None, None, None),
        (("bf16",), (8, 16), ("f32",), None, None, None),
        (("tf32",), (4, 8), ("f32",), None, None, None),
        (("i8", "u8"), (16, 32), ("i32",), None, None, None),
        (("i4", "u4"), (32, 64), ("i32",), None, None, None),
        (("e4m3", "e5m2"), (32,), ("f16", "f32"), None, None, None),
        (("e2m1", "e5m2", "e3m2"), (32,), ("f16", "f32"), "f8f6f4", None, None),
        (("e2m1", "e4m3", "e2m3"), (32,), ("f32",), "mxf8f6f4", "ue8m0", 32),
        (("e2m1",), (64,), ("f32",), "mxf4", "ue8m0", 32),
        (("e2m1",), (64,), ("f32",), "mxf4nvf4", "ue4m3", 16),
    )
    for k, c, a, b in product(depths, accumulators, types, types)
    for saturate in ((False, True) if c == "i32" else (False,))
]


def place_of(stored: MmaAtom) -> Layout:
    """The places of its metadata."""
    name = stored.a_dtype.name
    return PLACES["tf32" if name == "tf32" else stored.element_bits("A"), 2 * stored.shape_mnk[2]]


def variants(stored: MmaAtom) -> tuple[str, ...]:
    """The spellings that ptxas 13.0 takes."""
    newer = stored.ptx.count("kind::") or (stored.a_dtype.bits == 8 and stored.c_dtype.name == "f16")
    return ("sp::ordered_metadata",) if newer else ("sp", "sp::ordered_metadata")


def group_of(stored: MmaAtom) -> int:
    """Elements of A to which 4 bits belong."""
    return 2 if stored.a_dtype.name == "tf32" else 8 if stored.element_bits("A") == 4 else 4


def codes(rng: np.random.Generator, stored: MmaAtom, rows: int, ordered: bool) -> np.ndarray:
    groups = 2 * stored.shape_mnk[2] // group_of(stored)
    pairs = (*PAIRS, *(code >> 2 | (code & 3) << 2 for code in PAIRS if not ordered))
    return rng.choice((0b0100, 0b1110) if stored.a_dtype.name == "tf32" else pairs, (rows, groups))


def with_zeros(stored: MmaAtom, a: np.ndarray, metadata: np.ndarray) -> np.ndarray:
    """A of the whole depth, written out."""
    size = group_of(stored)
    out = np.zeros((len(a), 2 * a.shape[1]), a.dtype)
    for row, group in np.ndindex(metadata.shape):
        code, wide = int(metadata[row, group]), size // 4 or 1
        places = [code >> 3] if size == 2 else [code & 3, code >> 2]
        for n, place in enumerate(places):
            at, of = size * group + wide * place, size // 2 * group + wide * n
            out[row, at : at + wide] = a[row, of : of + wide]
    return out


def metadata_words(stored: MmaAtom, metadata: np.ndarray, selector: int, rng: np.random.Generator) -> np.ndarray:
    """A register of each lane: metadata where the selector names it, anything elsewhere."""
    places, size = place_of(stored), group_of(stored)
    named = places[0].nullspace()
    mask = max(named(n) for n in range(named.size))
    words = rng.integers(0, 1 << 32, 32, dtype=np.uint32)
    for lane in range(32):
        if lane & mask == named(selector):
            at = [int(places(lane, n)) for n in range(0, places[1].size, size)]
            words[lane] = sum(int(metadata[x % 16, x // 16 // size]) << 4 * n for n, x in enumerate(at))
    return words


def text_of(stored: MmaAtom, opcode: str, selector: int, more: str = "") -> str:
    counts = {"D": stored.registers("D"), "A": stored.registers("A"), "B": 2 * stored.registers("B"),
              "C": stored.registers("C"), "E": 1}  # fmt: skip
    lines = ["mov.u32 %r90, %tid.x; mul.wide.u32 %d90, %r90, 4;"]
    names = {}
    for n, (operand, count) in enumerate(counts.items()):
        names[operand] = [f"%r{16 * n + i}" for i in range(count)]
        lines.append(f"add.s64 %d9{n + 1}, %d90, %{operand};")
        lines += [f"ld.global.b32 {name}, [%d9{n + 1}+{128 * i}];" for i, name in enumerate(names[operand])]
    vectors = ", ".join("{" + ", ".join(names[operand]) + "}" for operand in "DABC")
    lines.append(f"{opcode} {vectors}, {names['E'][0]}, {selector}{more};")
    lines += [f"st.global.b32 [%d91+{128 * i}], {name};" for i, name in enumerate(names["D"])]
    return "\n".join(lines)


def b_registers(stored: MmaAtom, b: np.ndarray) -> np.ndarray:
    """B's registers: those of two products of half the depth, PTX's rows going on."""
    return np.vstack([registers_of(stored, "B", half[None]) for half in np.split(b, 2)])


def opcode_of(stored: MmaAtom, variant: str) -> str:
    k = stored.shape_mnk[2]
    return stored.ptx.replace(f"n8k{k}", f"n8k{2 * k}").replace(".sync", f".{variant}.sync")


class WarpCase:
    """One product: its operands, registers and text, and what it gives exactly."""

    def __init__(self, stored: MmaAtom, variant: str, selector: int = 0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        m, n, k = stored.shape_mnk
        shapes = {"A": (m, k), "B": (2 * k, n), "C": (m, n)}
        a, b, c = (random_values(rng, stored.dtype_of(o), shape) for o, shape in shapes.items())
        self.stored = stored
        metadata = codes(rng, stored, m, variant != "sp")
        whole, more = with_zeros(stored, a, metadata), ""
        if stored.scale is not None:  # by 1 and 2 in turns
            factors = stored.scale.dtype.decode(np.arange(256))
            blocks = [int(np.flatnonzero(factors == 1 + n % 2)[0]) for n in range(k // stored.scale.vector)]
            word = sum(factor << 8 * n for n, factor in enumerate(blocks))
            more = f", {word:#x}, {{0, 0}}, {word:#x}, {{0, 0}}"
            whole = whole * np.repeat(factors[blocks], 2 * stored.scale.vector) ** 2
        self.text = text_of(stored, opcode_of(stored, variant), selector, more)
        self.exact = whole @ b + c
        # B's registers are those of two products of half the depth: PTX's rows go on.
        self.buffers = {
            "D": np.zeros((stored.registers("D"), 32), np.uint32), "A": registers_of(stored, "A", a[None]),
            "B": np.vstack([registers_of(stored, "B", half[None]) for half in np.split(b, 2)]),
            "C": registers_of(stored, "C", c[None]), "E": metadata_words(stored, metadata, selector, rng),
        }  # fmt: skip

    def run(self, text: str | None = None) -> Result:
        return run(text or self.text, {name: array.copy() for name, array in self.buffers.items()}, target="sm_120a")

    def check(self) -> None:
        found = self.run()
        assert not found.findings, (self.text, str(found.findings[0]))
        assert np.array_equal(matrix_of(self.stored, "D", found["D"])[0], self.exact), self.text


@pytest.mark.parametrize("name", sorted({atom.a_dtype.name for atom in FORMS}))
def test_every_sparse_form_of_a_warp(name):
    for seed, stored in enumerate(FORMS):
        if stored.a_dtype.name == name:
            choices = place_of(stored)[0].nullspace().size
            for n, variant in enumerate(variants(stored)):
                WarpCase(stored, variant, (seed + n) % choices, seed).check()


def test_every_sparsity_selector():
    for stored in (mma_sync((16, 8, 8), "f16"), mma_sync((16, 8, 16), "bf16"), mma_sync((16, 8, 16), "i8")):
        choices = place_of(stored)[0].nullspace().size
        for selector in range(choices):
            WarpCase(stored, "sp", selector, 7).check()
        case = WarpCase(stored, "sp")
        with pytest.raises(PtxError, match=rf"the sparsity selector of .* is 0 to {choices - 1}, not {choices}"):
            case.run(case.text.replace(", 0;", f", {choices};"))
    case = WarpCase(mma_sync((16, 8, 32), "i8"), "sp")
    with pytest.raises(PtxError, match=r"is 0, not 1"):
        case.run(case.text.replace(", 0;", ", 1;"))


def test_metadata_without_a_meaning_are_reported():
    ordered, either = (WarpCase(mma_sync((16, 8, 16), "f16"), v, 1) for v in ("sp::ordered_metadata", "sp"))
    ordered.buffers["E"][2] = ordered.buffers["E"][2] & 0xFFFFF0FF | 0x100  # lane 2: row 0, group 2
    found = ordered.run().findings
    assert [one.kind for one in found] == ["protocol"]
    assert "metadata of row 0, group 2 of A is 0b0001; PTX gives a meaning to 0b0100, 0b1000" in found[0].message
    either.buffers["E"][2] = ordered.buffers["E"][2]
    assert not either.run().findings
    either.buffers["E"][7] = either.buffers["E"][7] & 0x0FFFFFFF | 0xA0000000  # lane 7: row 9, group 7
    assert "metadata of row 9, group 7 of A is 0b1010" in either.run().findings[0].message


def refused(opcode: str, operands: str) -> str:
    with pytest.raises(PtxError) as caught:
        run(f"{opcode} {operands};")
    return str(caught.value)


def test_sparse_forms_that_ptx_has_not_are_refused():
    four, two = "{%r0,%r1,%r2,%r3}", "{%r0,%r1}"
    tail = f"{four}, {two}, {four}, {four}"
    name = "mma.sp.sync.aligned."
    assert "no sparse m16n8k32 of e4m3" in refused(name + "m16n8k32.row.col.f32.e4m3.e4m3.f32", f"{tail}, %r4, 0")
    assert "ordered_metadata alone" in refused(name + "m16n8k64.row.col.f16.e4m3.e4m3.f16", f"{tail}, %r4, 0")
    assert "half its K" in refused(name + "m16n8k64.row.col.f32.f16.f16.f32", f"{tail}, %r4, 0")
    assert "6 operands, not 4" in refused(name + "m16n8k32.row.col.f32.f16.f16.f32", tail)
    plain = f"{four}, {four}, {four}, {four}"
    assert "not a constant" in refused(name + "m16n8k32.row.col.f32.f16.f16.f32", f"{plain}, %r4, %r5")
    assert "one register" in refused(name + "m16n8k32.row.col.f32.f16.f16.f32", f"{plain}, {two}, 0")


def test_qualifiers_of_sparse_products_in_the_order_that_cutlass_writes():
    stored = mma_sync((16, 8, 32), "e2m1", "e3m2", kind="f8f6f4")
    case = WarpCase(stored, "sp::ordered_metadata")
    spelled = "mma.sync.aligned.kind::f8f6f4.sp::ordered_metadata.m16n8k64.row.col.f32.e2m1.e3m2.f32"
    case.text = case.text.replace(opcode_of(stored, "sp::ordered_metadata"), spelled)
    case.check()


# ------------------------------------------------------------ warpgroups


LOAD_METADATA = """mov.u32 %lane, %tid.x;
  .reg .b32 %e; ld.param.u64 %g, [kernel_E]; mul.wide.u32 %o, %lane, 4; add.u64 %g, %g, %o; ld.global.b32 %e, [%g];"""


class WarpgroupCase:
    """One product of a warpgroup whose stored half is that of a dense atom."""

    def __init__(self, stored: MmaAtom, major_a="K", major_b="K", swizzle="128B", selector=0, step=0, seed=0) -> None:
        rng = np.random.default_rng(seed)
        self.stored, self.full = stored, of_full_depth(stored)
        a, c = (random_matrices(rng, stored, operand) for operand in "AC")
        b = random_matrices(rng, self.full, "B")
        metadata = codes(rng, stored, 64, True)
        words = [metadata_words(stored, rows, selector, rng) for rows in np.split(metadata, 4)]
        tiles, self.inputs = {}, {"C": values.pack(stored, "C", c)[0], "E": np.concatenate(words)}
        for operand, atom, major, matrix in (("A", stored, major_a, a), ("B", self.full, major_b, b)):
            if operand == "A" and stored.a_source == "rmem":
                self.inputs["A"] = values.pack(stored, "A", a)[0]
                continue
            tile = tile_for(atom, operand, major, swizzle, step + 1)
            described, depth, wanted = derive(tile, atom, operand), atom.tile_of(operand)[1], matrix[0, 0]
            more = np.zeros((tile.extent[0] - len(wanted), depth), np.int64)
            tiles[operand] = text_of_wgmma.Tile(tile.bytes, described.word, described.k_steps[step], major == "MN")
            self.inputs[operand] = tile_bytes(rng, tile, step * depth, np.vstack([wanted, more]))
        text = text_of_wgmma.kernel(stored, tiles.get("A"), tiles["B"]).replace(stored.ptx, self.full.ptx)
        text = text.replace("mov.u32 %lane, %tid.x;", LOAD_METADATA)
        text = text.replace("%descB, %add", f"%descB, %e, {selector}, %add")
        self.text = text.replace(".param .u64 kernel_D", ".param .u64 kernel_D, .param .u64 kernel_E")
        whole = with_zeros(stored, a[0, 0], metadata)
        self.exact = values.multiply(self.full, whole[None, None], b, c)[0, 0]

    def run(self, policy: Policy | None = None) -> Result:
        buffers = {name: self.inputs[name].copy() for name in "ABC"}
        buffers["D"] = np.zeros((128, self.stored.registers("D")), dtype=np.uint32)
        return run(self.text, buffers | {"E": self.inputs["E"].copy()}, block=128, policy=policy)

    def check(self, policy: Policy | None = None) -> None:
        found = self.run(policy)
        assert found.findings == []
        assert np.array_equal(values.unpack(self.stored, "D", found["D"][None])[0, 0], self.exact), self.text


def warpgroup_forms():
    for form in WGMMA_FORMS[:-1]:  # all but single bits
        for a, b, c in product(form.types, form.types, form.accumulators):
            yield wgmma(8, a, b, c)
            yield wgmma(24, a, b, c, "rmem")
    yield wgmma(16, "i8", saturate=True)


@pytest.mark.parametrize("atom", list(warpgroup_forms()), ids=lambda atom: f"{atom}-{atom.a_source}")
def test_every_sparse_form_of_a_warpgroup(atom):
    selector = 1 if atom.a_dtype.bits >= 16 and atom.a_source == "smem" else 0
    WarpgroupCase(atom, selector=selector, seed=selector).check()


def test_sparse_operands_of_every_swizzle_and_major():
    ran = 0
    for swizzle, major_a, major_b in product(SPANS, ("K", "MN"), ("K", "MN")):
        try:
            case = WarpgroupCase(wgmma(64, "bf16"), major_a, major_b, swizzle, step=1, seed=3)
        except LayoutError:
            continue
        case.check(Policy(products="early") if major_a == "MN" else None)
        ran += 1
    assert ran == 14  # two k of 64 bytes are wider than the span of 32B


def test_a_sparse_wgmma_checks_its_metadata():
    case = WarpgroupCase(wgmma(8, "f16"))
    case.inputs["E"][36] &= 0xFFFF0FFF  # warp 1, lane 4: row 17, group 3
    found = case.run()
    assert [one.kind for one in found.findings] == ["protocol"]
    assert "metadata of row 17, group 3 of A is 0b0000" in found.findings[0].message
    case.text = case.text.replace("%e, 0, %add", "%e, 2, %add")
    with pytest.raises(PtxError, match=r"the sparsity selector of wgmma.mma_async.sp.* is 0 to 1, not 2"):
        case.run()
