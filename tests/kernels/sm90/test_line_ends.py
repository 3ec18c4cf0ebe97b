"""Rows of C that end within 16 bytes: the compiled kernel's stores equal the plan's statement."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.machine.launch import Policy
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from tests import needs

SMALL = Sm90Config((64, 64), consumers=1)


@pytest.mark.parametrize(
    ("c", "m", "n", "beyond"),
    [
        ("bf16", 64, 1037, 6),
        ("bf16", 64, 1033, 14),
        ("bf16", 1037, 1040, 0),
        ("bf16:col", 1037, 1040, 6),
        ("f32", 64, 1037, 12),
        ("e4m3", 64, 1037, 3),
        ("bf16", 1, 1, 14),
    ],
)
def test_the_plans_statement_of_row_ends(c: str, m: int, n: int, beyond: int) -> None:
    plan = Sm90Plan.derive(m, n, 64, c=c, config=SMALL)
    assert plan.bytes_beyond_line == beyond
    assert plan.line_overrun == "" if beyond == 0 else f"{beyond} bytes beyond it are overwritten" in plan.line_overrun
    direct = Sm90Plan.derive(m, n, 64, c=c, config=Sm90Config((64, 64), consumers=1, store="direct"))
    assert (direct.bytes_beyond_line, direct.line_overrun) == (0, "")


@needs.DSL
@needs.C_COMPILER
@pytest.mark.parametrize("store", ["tma", "direct"])
def test_the_kernels_writes_at_row_ends(store: str) -> None:
    """Rows of 61 in a matrix of 80 columns: 61 to 63 are the kernel's, and reported, or stay as they are."""
    m, n, k, pitch = 66, 61, 72, 80
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", config=Sm90Config((64, 64), consumers=1, store=store))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(np.float32) for rows in (m, n))
    want = plan.c.dtype.encode(a @ b.T)
    own = n + plan.bytes_beyond_line // plan.c.dtype.bytes
    assert own == (64 if store == "tma" else 61)
    for policy in (Policy(), Policy(edges=False, stores="early")):
        c = np.full((m, pitch), 0xFFFF, np.uint16)
        given = (plan.a.dtype.encode(a), plan.b.dtype.encode(b), c, m, n, k, 1, k, k, pitch, 0, 0, 0, 1)
        done = emulate_launch(plan, given, policy, progress=False)
        kinds = ["edge"] if store == "tma" and policy.edges else []
        assert [finding.kind for finding in done.findings] == kinds, done.report()
        assert np.array_equal(c[:, :n], want)
        assert (c[:, n:own] != 0xFFFF).all() and (c[:, own:] == 0xFFFF).all()


@pytest.mark.parametrize("c", ["bf16", "bf16:col", "f32"])
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_run_owns_its_pitch(c: str, device: str) -> None:
    """Both executors write what the hardware writes, and look that nothing lies further on."""
    if device == "emulator":
        needs.module("cutlass")
        needs.c_compiler()
    m, n, k = 67, 61, 72
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", c=c, config=SMALL)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    assert plan.bytes_beyond_line > 0
    assert np.array_equal(plan.run(a, b, device=device).c, a @ b)
    if device == "emulator":
        with pytest.MonkeyPatch.context() as patch:  # a plan that does not say so
            patch.setattr(Sm90Plan, "bytes_beyond_line", 0)
            with pytest.raises(EmulatorError, match="between the lines of C were written"):
                plan.run(a, b, device=device)
