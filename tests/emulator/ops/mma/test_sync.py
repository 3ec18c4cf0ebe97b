"""mma.sync: every form against the fragments as PTX prints them and a product written out."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.atoms import MmaAtom, mma_sync
from layoutgemm.atoms.mma.sync import mma_sync_atoms
from layoutgemm.dtypes import DType
from layoutgemm.errors import PtxError
from tests.atoms.mma import ptx_fragments
from tests.emulator.run_ptx import run

ATOMS = list(mma_sync_atoms())


def registers_of(atom: MmaAtom, operand: str, matrix: np.ndarray) -> np.ndarray:
    """[register, lane] of raw bits, by PTX's formulas; B is given as K x N, as PTX has it."""
    width = 64 if atom.dtype_of(operand).bits == 64 else 32
    bits = atom.element_bits(operand)
    count = values_of(atom, operand)
    low = 2 if atom.dtype_of(operand).name == "e2m1" and bits == 8 else 0
    out = [[0] * 32 for _ in range(max(1, count * bits // width))]
    raw = atom.dtype_of(operand).encode(matrix)
    for lane in range(32):
        for i in range(count):
            row, column, product = spot(atom, operand, lane, i)
            at = raw[product, row, column]
            out[i * bits // width][lane] |= int(at) << i * bits % width + low
    return np.array(out, dtype=np.uint64 if width == 64 else np.uint32)


def values_of(atom: MmaAtom, operand: str) -> int:
    rows, columns = atom.tile_of(operand)
    return rows * columns // min(atom.threads, 32)


def spot(atom: MmaAtom, operand: str, lane: int, i: int) -> tuple[int, int, int]:
    """(row, column, product) of element i of a lane."""
    # A quad pair is lanes 4*i to 4*i + 3 and 16 more: PTX prints the places of the first.
    product = lane // 4 % 4 if atom.threads == 8 else 0
    row, column = ptx_fragments.place(atom, operand, lane - 4 * product, i)
    return (column, row, product) if operand == "B" else (row, column, product)


def matrix_of(atom: MmaAtom, operand: str, registers: np.ndarray) -> np.ndarray:
    kind = atom.dtype_of(operand)
    width = 64 if kind.bits == 64 else 32
    m, n, _ = atom.shape_mnk
    out = np.zeros((4 if atom.threads == 8 else 1, m, n), dtype=kind.storage)
    for lane in range(32):
        for i in range(values_of(atom, operand)):
            row, column, product = spot(atom, operand, lane, i)
            word = int(registers[i * kind.bits // width, lane])
            out[product, row, column] = word >> i * kind.bits % width & (1 << kind.bits) - 1
    return kind.decode(out)


def random_values(rng: np.random.Generator, kind: DType, shape: tuple[int, ...]) -> np.ndarray:
    if kind.kind != "float":
        low, high = (-(1 << kind.bits - 1), (1 << kind.bits - 1)) if kind.kind == "int" else (0, 1 << kind.bits)
        if kind.bits == 32:
            low, high = -1000, 1000
        return rng.integers(low, high, shape)
    return rng.integers(-4, 5, shape) / 2.0


def product_text(atom: MmaAtom, more: str = "", opcode: str = "") -> tuple[str, list[int]]:
    """PTX that loads the operands from [register, lane] buffers and stores D, and its registers."""
    counts = {}
    for operand in "DABC":
        bits = atom.element_bits(operand)
        width = 64 if atom.dtype_of(operand).bits == 64 else 32
        counts[operand] = (max(1, values_of(atom, operand) * bits // width), width)
    lines, names = ["mov.u32 %r90, %tid.x;"], {}
    for n, operand in enumerate("DABC"):
        count, width = counts[operand]
        letter = "d" if width == 64 else "r"
        names[operand] = [f"%{letter}{20 * n + i}" for i in range(count)]
        lines.append(f"mul.wide.u32 %d9{n}, %r90, {width // 8};")
        if operand != "D":
            lines.append(f"add.s64 %d9{n}, %d9{n}, %{operand};")
            for i, name in enumerate(names[operand]):
                lines.append(f"ld.global.b{width} {name}, [%d9{n}+{i * 4 * width}];")
    vectors = ", ".join("{" + ", ".join(names[operand]) + "}" for operand in "DABC")
    lines.append(f"{opcode or atom.ptx} {vectors}{more};")
    lines.append("add.s64 %d90, %d90, %D;")
    for i, name in enumerate(names["D"]):
        lines.append(f"st.global.b{counts['D'][1]} [%d90+{i * 4 * counts['D'][1]}], {name};")
    return "\n".join(lines), [counts["D"][0], counts["D"][1]]


def execute(atom: MmaAtom, a, b, c, more: str = "", opcode: str = "", **also: np.ndarray) -> np.ndarray:
    text, (count, width) = product_text(atom, more, opcode)
    buffers = {
        "A": registers_of(atom, "A", a), "B": registers_of(atom, "B", b), "C": registers_of(atom, "C", c),
        "D": np.zeros((count, 32), dtype=f"u{width // 8}"), **also,
    }  # fmt: skip
    result = run(text if not also else LOAD_SCALES + text, buffers, target="sm_120a")
    assert not result.findings
    return matrix_of(atom, "D", result["D"])


LOAD_SCALES = """
mov.u32 %r95, %tid.x; mul.wide.u32 %d95, %r95, 4; add.s64 %d94, %d95, %SA; ld.global.b32 %r94, [%d94];
add.s64 %d94, %d95, %SB; ld.global.b32 %r93, [%d94];
"""


def operands(atom: MmaAtom, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    products = 4 if atom.threads == 8 else 1
    m, n, k = atom.shape_mnk
    shapes = {"A": (products, m, k), "B": (products, k, n), "C": (products, m, n)}
    a, b, c = (random_values(rng, atom.dtype_of(o), shape) for o, shape in shapes.items())
    return a, b, c


@pytest.mark.parametrize("kind", sorted({a.a_dtype.name for a in ATOMS}))
def test_every_form(kind):
    chosen = [atom for atom in ATOMS if atom.a_dtype.name == kind and atom.scale is None]
    assert chosen
    for seed, atom in enumerate(chosen):
        a, b, c = operands(atom, seed)
        got = execute(atom, a, b, c)
        if kind == "b1":
            combine = np.logical_and if ".and." in atom.ptx else np.logical_xor
            want = combine(a[:, :, :, None], b[:, None, :, :]).sum(2) + c
        else:
            want = np.einsum("pmk,pkn->pmn", a, b) + c
        assert np.array_equal(got, want), atom.ptx


def test_integers_wrap_or_saturate():
    for saturate in (False, True):
        atom = mma_sync((16, 8, 32), "i8", saturate=saturate)
        a, b = np.full((1, 16, 32), -128), np.full((1, 32, 8), -128)
        b[:, :, 1] = 127
        c = np.full((1, 16, 8), 2**31 - 5)
        c[:, :, 1] = -(2**31) + 5
        exact = np.einsum("pmk,pkn->pmn", a, b) + c
        want = np.clip(exact, -(2**31), 2**31 - 1) if saturate else (exact + 2**31) % 2**32 - 2**31
        assert np.array_equal(execute(atom, a, b, c), want)


def test_sums_are_exact_in_float32_and_rounded_to_it():
    atom = mma_sync((16, 8, 16), "bf16")
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(s) for s in ((1, 16, 16), (1, 16, 8), (1, 16, 8)))
    kinds = (atom.a_dtype, atom.b_dtype, atom.c_dtype)
    a, b, c = (kind.decode(kind.encode(x)).astype(float) for kind, x in zip(kinds, (a, b, c)))
    want = np.einsum("pmk,pkn->pmn", a, b) + c
    bound = 16 * 2.0**-24 * (np.einsum("pmk,pkn->pmn", abs(a), abs(b)) + abs(c))
    assert (abs(execute(atom, a, b, c) - want) <= bound).all()


SCALED = [atom for atom in ATOMS if atom.scale is not None and atom.a_dtype.name in ("e4m3", "e2m1")]


@pytest.mark.parametrize("atom", SCALED, ids=str)
def test_block_scales(atom):
    a, b, c = operands(atom, 7)
    rng = np.random.default_rng(8)
    factor, (m, n, k) = atom.scale.dtype, atom.shape_mnk
    blocks = k // atom.scale.vector
    codes = [rng.integers(0x7D, 0x82, (rows, blocks)) if factor.name == "ue8m0" else
             factor.encode(rng.integers(1, 5, (rows, blocks)) / 2.0) for rows in (m, n)]  # fmt: skip
    # PTX ISA, "Block Scaling for mma.sync": a quad's lanes 2*thread-id and 2*thread-id + 1 hold rows g and g + 8 of A's
    # factors, its lane thread-id those of B's column g, in the bytes from byte-id on.
    for thread_a, thread_b, byte in ((0, 0, 0), (1, 3, 0), *([(0, 2, 4 - blocks)] if blocks < 4 else [])):
        words = np.full((2, 32, 4), 0x55, dtype=np.uint8)
        for g in range(8):
            for block in range(blocks):
                words[0, 4 * g + 2 * thread_a, byte + block] = codes[0][g, block]
                words[0, 4 * g + 2 * thread_a + 1, byte + block] = codes[0][g + 8, block]
                words[1, 4 * g + thread_b, byte + block] = codes[1][g, block]
        more = f", {{%r94}}, {{{byte}, {thread_a}}}, {{%r93}}, {{{byte}, {thread_b}}}"
        buffers = {"SA": words[0].view(np.uint32), "SB": words[1].view(np.uint32)}
        got = execute(atom, a, b, c, more, **buffers)
        scale_a, scale_b = (np.repeat(factor.decode(x), atom.scale.vector, axis=1).astype(float) for x in codes)
        want = np.einsum("pmk,pkn->pmn", a * scale_a, b * scale_b.T) + c
        assert np.array_equal(got, want)


def test_qualifiers_in_the_order_that_cutlass_writes():
    atom = mma_sync((16, 8, 32), "e4m3", "e2m1", kind="f8f6f4")
    a, b, c = operands(atom, 1)
    opcode = "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e2m1.f32"
    assert np.array_equal(execute(atom, a, b, c, opcode=opcode), np.einsum("pmk,pkn->pmn", a, b) + c)


def test_constants_and_uniform_registers_are_operands():
    body = """
    mov.b32 %r0, 0x3f803f80; mov.b32 %r1, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
      {%f0,%f1,%f2,%f3}, {%r0,%r0,%r0,%r0}, {%r0,%r0}, {%f4,%f4,%f4,%f4};
    mov.u32 %r9, %tid.x; mul.wide.u32 %d0, %r9, 4; add.s64 %d0, %d0, %out; st.global.f32 [%d0], %f3;
    """
    out = np.zeros(32, np.float32)
    run("mov.f32 %f4, 0f3F800000;" + body, {"out": out})
    assert (out == 17).all()


def refused(opcode: str, vectors: str = "{%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3}") -> str:
    with pytest.raises(PtxError) as caught:
        run(f"{opcode} {vectors};")
    return str(caught.value)


def test_unknown_forms_are_refused_with_their_line():
    shape = refused("mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32")
    assert re.search(r"PTX line \d+.*it has no m16n8k32", shape)
    short = "{%f0,%f1,%f2,%f3}, {%r0,%r1,%r2}, {%r4,%r5}, {%f0,%f1,%f2,%f3}"
    assert "operand 1 has 3 registers" in refused("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", short)
    assert "foo is not emulated" in refused("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.foo")
    assert ".aligned" in refused("mma.sync.m16n8k16.row.col.f32.bf16.bf16.f32")


def test_a_diverged_warp_is_reported():
    body = """
    mov.u32 %r9, %tid.x; setp.lt.u32 %p0, %r9, 16; mov.b32 %r0, 0; mov.f32 %f0, 0f00000000;
    @%p0 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
      {%f0,%f1,%f2,%f3}, {%r0,%r0,%r0,%r0}, {%r0,%r0}, {%f0,%f0,%f0,%f0};
    """
    assert run(body).kinds == ["divergence"]


def test_an_unwritten_register_is_named():
    done = run("mov.b32 %r0, 0; mov.f32 %f0, 0f00000000; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%f0,%f1,%f2,%f3}, {%r0,%r0,%r0,%r0}, {%r0,%r5}, {%f0,%f0,%f0,%f0};")  # fmt: skip
    assert not done.machine.findings.found  # nothing depends on the product
    assert "register %r5 is read and was never written" in done.machine.suspects.found[0].message


def test_registers_that_change_between_products():
    """Matrices are remembered as long as their registers hold the same values, and no longer."""
    body = """mov.u32 %r30, %tid.x; mul.wide.u32 %d0, %r30, 4; add.s64 %d0, %d0, %out; mov.b32 %r0, 0x3f803f80;
    setp.lt.u32 %p0, %r30, 64; shr.u32 %r9, %r30, 8; or.b32 %r0, %r0, %r9; mov.b32 %r1, %r0;
    cvt.rn.f32.u32 %f0, %r9; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.b32 %r8, 0;
    add.u32 %r8, %r8, %r30; sub.u32 %r8, %r8, %r30; or.b32 %r0, %r0, %r8; or.b32 %r1, %r1, %r8; PRODUCT CHANGE PRODUCT
    st.global.f32 [%d0], %f0;"""
    product = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    product += "{%f0, %f1, %f2, %f3}, {%r0, %r0, %r0, %r0}, {%r1, %r1}, {%f0, %f1, %f2, %f3};"
    for change, want in (
        ("", 32), ("add.u32 %r0, %r8, 0x40004000;", 48), ("add.u32 %r1, %r8, 0x40004000;", 48),
        ("mul.f32 %f0, %f0, 0f40000000;", 48), ("@%p0 add.u32 %r0, %r8, 0x40004000;", 48),
    ):  # fmt: skip
        out = np.zeros(32, np.float32)
        run(body.replace("PRODUCT", product).replace("CHANGE", change), {"out": out})
        assert (out == want).all(), (change, out)
