"""Mutants of the promoting and of the grouped kernels: each is caught by a few shapes, or provably changes nothing."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.mutation.mutants import deletions, fields
from layoutgemm.emulator.mutation.run import EARLY, LaunchCase, sample, unreached
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.ragged import AlongK, Ragged
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from tests import needs
from tests.kernels.launch_cases import launch_case, unproven

pytestmark = [
    pytest.mark.slow,
    needs.DSL,
    needs.C_COMPILER,
]
LOOP = Promoted.of(lambda total, product, sa, sb: total + sa * sb * product, Table("sa", "m"), Table("sb", "n", 64))
# Rows, or rows of each group; columns; K: edges along each, fewer k tiles than stages and more, more tiles than blocks.
SHAPES: dict[str, tuple[Any, ...]] = {
    "promoted": ((192, 144, 528), (128, 64, 128), (72, 208, 272)),
    "grouped": (((70, 0, 130, 1), 144, 320), ((0, 64, 0), 64, 64), ((15, 16, 17, 33, 0, 5), 72, 136)),
    "masked": (((70, 0, 130, 1), 144, 320), ((0, 64, 0), 64, 64), ((15, -1, 17, 133, 0, 5), 72, 136)),
    # lines of each group, N, M
    "along K": (((70, 0, 130, 1), 144, 136), ((0, 64, 0), 64, 64), ((257, 0, 5), 72, 200)),
}
ORDERS = (Policy(fences="writers"), Policy(fences="writers", waits="reluctant"), EARLY)


def problem(form: str, shape: Any) -> tuple[Sm90Plan, tuple[Any, ...], np.ndarray]:
    """The plan, a launch's arguments without C, and the expected C. One worker; two where a group has the only tile."""
    rows, n, k = shape
    workers = 2 if n == 64 else 1
    rng = np.random.default_rng(n + k)
    if form == "promoted":
        plan = Sm90Plan.derive(
            rows, n, k, a="e4m3", b="e4m3:col", c="bf16", config=Sm90Config((128, 64), stages=3), mainloop=LOOP
        )
        a, b = (rng.integers(-2, 3, (x, k)).astype(np.float32) for x in (rows, n))
        shapes = {table.name: table.shape(rows, n, -(-k // 128)) for table in LOOP.tables}
        given = {name: np.exp2(rng.integers(-2, 3, x)).astype(np.float32) for name, x in shapes.items()}
        blocks = -(-k // 128)
        words = [given["sa"], blocks, 1, 0, given["sb"], blocks, 1, 0]
        want = LOOP.reference(a, b.T, **given)
        bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(b)]
        sizes = (rows, n, k, 1, k, k, n, 0, 0, 0, 1)
    elif form == "along K":
        lines, groups, m = sum(rows), len(rows), k
        plan = Sm90Plan.derive(
            m, n, lines, batch=groups, a="bf16:col", b="bf16:row", along_k=AlongK.of(groups),
            config=Sm90Config((64, 64), consumers=1, stages=3, loader="warp"),
        )  # fmt: skip
        a, b = (rng.integers(-2, 3, (lines, x)).astype(np.float32) for x in (m, n))
        offsets = np.cumsum([0, *rows]).astype(np.int32)
        words = [offsets]
        want = np.stack([a[first:end].T @ b[first:end] for first, end in pairwise(offsets)])
        bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(b)]
        sizes = (m, n, lines, groups, m, n, n, 0, 0, m * n, 1)
    elif form == "masked":
        groups, m = len(rows), 132
        plan = Sm90Plan.derive(
            m, n, k, batch=groups, b="bf16:col", config=Sm90Config((64, 64), consumers=1, stages=3),
            ragged=Ragged.of(groups, masked=True),
        )  # fmt: skip
        a, b = (rng.integers(-2, 3, x).astype(np.float32) for x in ((groups, m, k), (groups, n, k)))
        words = [np.asarray(rows, np.int32)]
        want = np.matmul(a, b.swapaxes(1, 2))
        bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(b)]
        sizes = (m, n, k, groups, k, k, n, m * k, n * k, m * n, workers)
        encoded = plan.c.dtype.encode(want)
        encoded[np.arange(m)[None, :] >= np.asarray(rows)[:, None]] = 0xFFFF
        return plan, (*bits, *sizes, *words, *[0] * 15), encoded
    else:
        m, groups = sum(rows), len(rows)
        plan = Sm90Plan.derive(
            m, n, k, batch=groups, b="bf16:col", config=Sm90Config((64, 64), consumers=1, stages=3),
            ragged=Ragged.of(groups),
        )  # fmt: skip
        a, b = (rng.integers(-2, 3, x).astype(np.float32) for x in ((m, k), (groups, n, k)))
        offsets = np.cumsum([0, *rows]).astype(np.int32)
        words = [offsets]
        want = np.concatenate([a[first:end] @ b[e].T for e, (first, end) in enumerate(pairwise(offsets))])
        bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(b)]
        sizes = (m, n, k, groups, k, k, n, 0, n * k, 0, workers)
    return plan, (*bits, *sizes, *words, *[0] * (16 - len(words))), plan.c.dtype.encode(want.astype(np.float32))


def case(form: str, shape: Any, policy: Policy) -> tuple[PtxKernel, LaunchCase]:
    plan, (a, b, *rest), want = problem(form, shape)
    return launch_case(linked(plan), f"{shape}", [a, b, np.full_like(want, 0xFFFF)], rest, want, policy)


@lru_cache
def everything(form: str) -> tuple[PtxKernel, tuple[LaunchCase, ...]]:
    found = [case(form, shape, policy) for policy in ORDERS for shape in SHAPES[form]]
    return found[0][0], tuple(one for _, one in found)


@pytest.mark.parametrize("form", SHAPES)
def test_every_instruction_is_reached(form: str) -> None:
    kernel, cases = everything(form)
    assert [str(ins) for ins in unreached(kernel, cases)] == []


@pytest.mark.parametrize("form", SHAPES)
def test_a_sample_of_mutants_is_caught_or_changes_nothing(form: str) -> None:
    kernel, cases = everything(form)
    judge = Explainer(kernel, cases[: len(SHAPES[form])], cases[len(SHAPES[form]) :])
    rows = [judge.row(mutant) for mutant in sample([*deletions(judge.kernel), *fields(judge.kernel)], 24)]
    assert unproven(rows) == []
