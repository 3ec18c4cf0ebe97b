"""ldmatrix, stmatrix, movmatrix: every form against the figures of PTX, written out lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms.copy.ldmatrix import matrix_copies
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.run_ptx import run

ATOMS = [atom for atom in matrix_copies() if not atom.ptx.startswith("mov")]
ROWS = 32  # of 16 bytes that the tests move
# The lane's 16 bytes of buffer `a` go to the row of shared memory that a permutation gives; %r10: that row's address.
FILL = """
mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 16; mul.wide.u32 %d31, %r30, 4;
mov.u32 %r9, smem; mul.lo.u32 %r8, %r30, 5; add.u32 %r8, %r8, 3; and.b32 %r8, %r8, 31;
mad.lo.u32 %r10, %r8, 16, %r9;
"""
LOAD = """
add.s64 %d0, %a, %d30; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d0];
st.shared.v4.b32 [%r10], {%r0, %r1, %r2, %r3}; bar.warp.sync -1;
"""


def words(atom) -> dict[str, str | int | bool]:
    name, _, _, shape, count, *rest = atom.ptx.split(".")
    trans = "trans" in rest
    return {"load": name == "ldmatrix", "shape": shape, "count": int(count[1:]), "trans": trans, "type": rest[-1]}


def fragment(atom, memory: np.ndarray) -> np.ndarray:
    """[register, lane] by PTX's figures, from rows of 16 bytes in the order of the addresses."""
    form = words(atom)
    registers = atom.bytes_per_thread("dst" if form["load"] else "src") // 4
    out = np.zeros((registers, 32), dtype=np.uint32)
    data = memory
    if form["type"] in ("b6x16_p32", "b4x16_p64"):
        bits = int(form["type"][1])
        data = np.zeros_like(memory)
        for row in range(len(memory)):
            packed = int.from_bytes(memory[row].tobytes(), "little")
            data[row] = [packed >> bits * i & (1 << bits) - 1 for i in range(16)]
    if form["shape"] == "m8n8":  # figure of m8n8: row l/4, elements 2*(l%4) and the next
        matrix = data.view(np.uint16).reshape(-1, 8, 8)
        for n in range(form["count"]):
            held = matrix[n].T if form["trans"] else matrix[n]
            for lane in range(32):
                low, up = held[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                out[n, lane] = int(low) | int(up) << 16
    elif form["shape"] == "m8n16":  # row l/4, bytes 4*(l%4) to 4*(l%4) + 3
        matrix = data.reshape(-1, 8, 16)
        for n in range(form["count"]):
            for lane in range(32):
                out[n, lane] = int.from_bytes(matrix[n, lane // 4, 4 * (lane % 4) :][:4].tobytes(), "little")
    elif form["shape"] == "m16n16":  # transposed; registers 2*n and 2*n + 1: rows l/4 and l/4 + 8
        matrix = data.reshape(-1, 16, 16)
        for n in range(form["count"]):
            for half in range(2):
                for lane in range(32):
                    column = matrix[n].T[lane // 4 + 8 * half, 4 * (lane % 4) :][:4]
                    out[2 * n + half, lane] = int.from_bytes(np.ascontiguousarray(column).tobytes(), "little")
    else:  # stmatrix m16n8: 16 rows by 8 columns, stored by columns; bytes (l/4 + 8*(i/2), 2*(l%4) + i%2) of a lane
        matrix = data.reshape(-1, 8, 16)
        for n in range(form["count"]):
            for lane in range(32):
                for i in range(4):
                    value = matrix[n, 2 * (lane % 4) + i % 2, lane // 4 + 8 * (i // 2)]
                    out[n, lane] |= np.uint32(int(value) << 8 * i)
    return out


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_every_form(atom):
    load = atom.ptx.startswith("ldmatrix")
    rng = np.random.default_rng(11)
    a = rng.integers(0, 256, (ROWS, 16), dtype=np.uint8)
    used = len(atom.address_threads("src" if load else "dst"))
    want = fragment(atom, a[:used])
    count = len(want)
    vector = "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"
    out = np.zeros((count, 32), dtype=np.uint32)
    if load:
        body = FILL + LOAD + f"{atom.ptx} {vector}, [%r10]; add.s64 %d1, %out, %d31;"
        body += "".join(f"st.global.b32 [%d1+{128 * i}], %r{20 + i};" for i in range(count))
        result = run(body, {"a": a, "out": out}, shared=512, target="sm_120a")
        assert np.array_equal(out, want)
    else:
        out[:] = want
        back = np.zeros_like(a)
        body = FILL + "add.s64 %d1, %out, %d31;"
        body += "".join(f"ld.global.b32 %r{20 + i}, [%d1+{128 * i}];" for i in range(count))
        body += f"{atom.ptx} [%r10], {vector}; setp.lt.u32 %p0, %r30, {used}; add.s64 %d0, %back, %d30;"
        body += "@%p0 ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r10];"
        body += "@%p0 st.global.v4.b32 [%d0], {%r0, %r1, %r2, %r3};"
        result = run(body, {"out": out, "back": back}, shared=512, target="sm_120a")
        assert np.array_equal(back[:used], a[:used])
    assert not result.findings


def test_movmatrix_transposes():
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    held = matrix.copy().view(np.uint32).reshape(32)
    body = """mov.u32 %r30, %tid.x; mul.wide.u32 %d31, %r30, 4; add.s64 %d0, %a, %d31; ld.global.b32 %r0, [%d0];
    movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0; st.global.b32 [%d0], %r1;"""
    result = run(body, {"a": held})
    assert np.array_equal(result["a"].view(np.uint16).reshape(8, 8), matrix.T)


X4 = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r10];"
X1 = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r10];"


def test_modifiers_come_in_any_order():
    """As ptxas takes them; CUTLASS writes the number before the shape."""
    a, found = np.arange(512, dtype=np.uint16).view(np.uint8)[:512], []
    store = "add.s64 %d1, %out, %d30; st.global.v4.b32 [%d1], {%r0, %r1, %r2, %r3};"
    for form in ("m8n8.x4.trans.shared", "x4.trans.m8n8.shared", "m8n8.trans.x4.shared", "m8n8.x4.shared.trans"):
        out = np.zeros((32, 4), np.uint32)
        run(FILL + LOAD + X4.replace("m8n8.x4.shared", form) + store, {"a": a, "out": out}, shared=512)
        found.append(out)
    assert all((one == found[0]).all() for one in found) and found[0].any()


def test_generic_addresses():
    body = (
        FILL
        + LOAD
        + """
    cvt.u64.u32 %d5, %r10; cvta.shared.u64 %d5, %d5; ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%d5];
    add.s64 %d1, %out, %d31; st.global.b32 [%d1], %r0;"""
    )
    a, out = np.arange(512, dtype=np.uint8), np.zeros(32, np.uint32)
    run(body, {"a": a, "out": out}, shared=512)
    assert np.array_equal(out, a[:128].view(np.uint32))


def test_lanes_that_supply_no_address_are_not_looked_at():
    a = np.zeros(512, np.uint8)
    wild = "setp.gt.u32 %p0, %r30, 7; @%p0 mov.u32 %r10, 0xFFFFF3;"
    assert run(FILL + LOAD + wild + X1, {"a": a}, shared=512).kinds == []
    with pytest.raises(EmulatorError, match=r"row address .* not a multiple of 16\n.*warp 0 .*at PTX line \d+"):
        run(FILL + LOAD + "setp.eq.u32 %p0, %r30, 7; @%p0 add.u32 %r10, %r10, 8;" + X1, {"a": a}, shared=512)


def test_a_row_outside_is_refused():
    with pytest.raises(EmulatorError, match="of 0x600 bytes"):
        run(FILL + "mov.u32 %r10, 0x600;" + X4, {}, shared=512)


def test_unwritten_rows_are_reported_with_the_byte():
    a = np.zeros(512, np.uint8)
    skip = LOAD.replace("st.shared", "setp.ne.u32 %p0, %r30, 9; @%p0 st.shared")
    result = run(FILL + skip + X4, {"a": a}, shared=512)
    assert result.kinds == ["uninitialised"] and "0x600" not in result.findings[0].message
    row = (9 * 5 + 3) % 32
    assert f"{0x400 + 16 * row:#x}" in result.findings[0].message
    # The padding of packed rows is no data.
    packed = X4.replace("m8n8", "m8n16").replace("b16", "b8x16.b4x16_p64")
    half = LOAD.replace("st.shared.v4.b32 [%r10], {%r0, %r1, %r2, %r3}", "st.shared.v2.b32 [%r10], {%r0, %r1}")
    assert run(FILL + half + packed, {"a": a}, shared=512, target="sm_120a").kinds == []


def test_races_with_other_warps():
    a = np.zeros(1024, np.uint8)
    body = FILL.replace("and.b32 %r8, %r8, 31;", "and.b32 %r8, %r8, 63;") + LOAD
    read_all = "and.b32 %r30, %r30, 31; mad.lo.u32 %r10, %r30, 16, %r9;"
    assert run(body + "bar.sync 0;" + read_all + X4, {"a": a}, block=64, shared=1024).kinds == []
    result = run(body + read_all + X4, {"a": a}, block=64, shared=1024)
    assert "race" in result.kinds
    race = next(f for f in result.findings if f.kind == "race")
    assert "ldmatrix" in race.message and "st.shared" in race.message
    store = "bar.sync 0; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9], {%r30};"
    assert "race" in run(body + store, {"a": a}, block=64, shared=1024).kinds


def test_equal_matrices_of_two_warps_are_lint():
    """Warps that hold one tile each write the same rows: in either order memory holds them."""
    store = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r10], {VALUE};"
    same = """mov.u32 %r30, %tid.x; mov.u32 %r29, smem; and.b32 %r9, %r30, 31; and.b32 %r10, %r30, 7;
    mad.lo.u32 %r10, %r10, 16, %r29;"""
    assert run(same + store.replace("VALUE", "%r9"), {}, block=64, shared=1024).kinds == ["lint"]
    assert "race" in run(same + store.replace("VALUE", "%r30"), {}, block=64, shared=1024).kinds
    # The bits of -0 and 0 differ, and those of a NaN equal themselves.
    for first, second, kind in ((0x80000000, 0, "race"), (0x7FF87FF8, 0x7FF87FF8, "lint")):
        pick = f"setp.ge.u32 %p0, %r30, 32; selp.b32 %r9, {first}, {second}, %p0;"
        found = run(same + pick + store.replace("VALUE", "%r9"), {}, block=64, shared=1024).kinds
        assert set(found) == {kind}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r0, %r1, %r2}, [%r3];", "1, 2 or 4 matrices"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [%r3];", "2 registers is given 1"),
        ("ldmatrix.sync.m8n8.x1.shared.b16 {%r0}, [%r3];", "sync.aligned"),
        ("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r0, %r1}, [%r3];", "only with .trans"),
        ("stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r3], {%r0};", "only with .trans"),
        ("movmatrix.sync.aligned.m8n8.b16 %r0, %r1;", "not emulated"),
    ],
)
def test_forms_that_ptx_has_not_are_refused(text, says):
    with pytest.raises(PtxError, match=rf"PTX line \d+: .*{says}"):
        run(text)


def test_a_diverged_warp_is_reported():
    a = np.zeros(512, np.uint8)
    result = run(FILL + LOAD + "setp.lt.u32 %p0, %r30, 16; @%p0 " + X1, {"a": a}, shared=512)
    assert result.kinds == ["divergence"]


def test_a_blocks_last_warp_may_have_too_few_threads() -> None:
    """Their registers are no fragment: of a block of 40 threads the second warp has 8."""
    load = "mov.u32 %r9, smem; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r9];"
    finding = run(load, block=40, shared=64).findings[0]
    assert (finding.kind, finding.warp) == ("divergence", 1) and "this one has 8" in finding.message
    assert not [one for one in run(load, block=64, shared=64).findings if one.kind == "divergence"]
