"""wmma against NumPy: shapes, types and majors; what lanes store is not yet seen by others; forms that do not exist."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.dtypes import dtype
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.run_ptx import run

# type of A and B, of the accumulators, shape, registers of A, B and C, their letter, majors
FORMS = [
    ("f16", "f32", (16, 16, 16), (8, 8, 8), "rrf", "row.col"), ("f16", "f16", (8, 32, 16), (8, 8, 4), "rrr", "col.row"),
    ("bf16", "f32", (32, 8, 16), (8, 2, 8), "rrf", "row.row"),
    ("tf32", "f32", (16, 16, 8), (4, 4, 8), "rrf", "col.col"),
    ("s8", "s32", (16, 16, 16), (2, 2, 8), "rrr", "row.row"), ("u8", "s32", (8, 32, 16), (1, 4, 8), "rrr", "col.col"),
    ("s4", "s32", (8, 8, 32), (1, 1, 2), "rrr", "row.col"), ("b1", "s32", (8, 8, 128), (1, 1, 2), "rrr", "row.col"),
    ("f64", "f64", (8, 8, 4), (1, 1, 2), "eee", "row.col"),
]  # fmt: skip
FORMATS = {"tf32": "f32", "s8": "i8", "s4": "i4", "s32": "i32"}


def vector(letter: str, first: int, count: int) -> str:
    names = [f"%{letter}{first + i}" for i in range(count)]
    return names[0] if count == 1 else f"{{{', '.join(names)}}}"


def packed(kind: str, matrix: np.ndarray) -> np.ndarray:
    """The bytes of a matrix; elements of fewer bits are packed along its lines."""
    form = dtype(FORMATS.get(kind, kind))
    bits = form.encode(matrix).reshape(-1)
    if form.bits >= 8:
        return bits.astype(f"u{form.bytes}").view(np.uint8)
    rows = bits.reshape(-1, 8 // form.bits).astype(np.int64) << np.arange(0, 8, form.bits)
    return rows.sum(axis=1).astype(np.uint8)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[0]}-{form[1]}")
def test_a_product(form):
    kind, target, (m, n, k), counts, letters, majors = form
    rng, (a_major, b_major) = np.random.default_rng(0), majors.split(".")
    low, high = (0, 2) if kind == "b1" else (0, 8) if kind == "u8" else (-3, 4)
    a, b, c = (rng.integers(low, high, shape) for shape in ((m, k), (k, n), (m, n)))
    names = f"m{m}n{n}k{k}"
    regs = [vector(letter, first, count) for letter, first, count in zip(letters, (0, 16, 32), counts)]
    operation, types = ("xor.popc.", "s32.b1.b1.s32") if kind == "b1" else ("", f"{target}.{kind}.{kind}.{target}")
    types = f"{target}.{target}" if kind == "f16" else types
    body = f"""wmma.load.a.sync.aligned.{a_major}.{names}.global.{kind} {regs[0]}, [%a], {k if a_major == "row" else m};
        wmma.load.b.sync.aligned.{b_major}.{names}.{kind} {regs[1]}, [%b];
        wmma.load.c.sync.aligned.col.{names}.global.{target} {regs[2]}, [%c], {m + 4};
        wmma.mma.{operation}sync.aligned.{majors}.{names}.{types} {regs[2]}, {regs[0]}, {regs[1]}, {regs[2]};
        wmma.store.d.sync.aligned.row.{names}.global.{target} [%out], {regs[2]}, {n};"""
    ahead = np.zeros((n, m + 4), np.int64)
    ahead[:, :m] = c.T
    out = np.zeros((m, n), {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}[target])
    buffers = {
        "a": packed(kind, a if a_major == "row" else a.T), "b": packed(kind, b if b_major == "row" else b.T),
        "c": packed(target, ahead), "out": out,
    }  # fmt: skip
    assert not run(body, buffers, target="sm_80").findings
    want = a @ b + c if kind != "b1" else (a[:, :, None] != b[None]).sum(axis=1) + c
    assert np.array_equal(out, want)


def test_other_lanes_see_a_stored_matrix_after_a_barrier():
    names = vector("f", 0, 8)
    zeros = "".join(f"mov.f32 %f{i}, 0f3F800000;" for i in range(8))
    body = zeros + f"wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [smem], {names}, 16; {{}} mov.u32 %r1, %tid.x;"
    body += "shl.b32 %r1, %r1, 5; mov.u32 %r2, smem; sub.u32 %r2, %r2, %r1; ld.shared.f32 %f9, [%r2+992];"
    assert run(body.replace("{}", "bar.warp.sync -1;"), shared=1024).kinds == []
    assert set(run(body.replace("{}", ""), shared=1024).kinds) == {"race"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r0, %r1}, [%a];", "no form of wmma"),
     ("wmma.load.a.sync.aligned.m16n16k16.f16 {%r0, %r1, %r2, %r3}, [%a];", "is not emulated"),
     ("wmma.load.b.sync.aligned.row.m8n8k32.s4 {%r0}, [%a];", "elements within a byte lie along k"),
     ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0, %r1, %r2}, [%a];", "3 registers hold 192 elements")],
)  # fmt: skip
def test_forms_that_do_not_exist(text, says):
    with pytest.raises(PtxError, match=says):
        run(text, {"a": np.zeros(64, np.float16)})


def test_a_stride_within_a_byte():
    with pytest.raises(EmulatorError, match="stride of 33 elements of 4 bits"):
        run("wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r0}, [%a], 33;", {"a": np.zeros(256, np.uint8)})
