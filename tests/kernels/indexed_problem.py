"""Operands of products with indexed rows, and their exact C."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from layoutgemm.kernels import Sm80Plan, Sm90Plan, Sm100Plan
from layoutgemm.kernels.orders import stored_elements

KINDS = {"i32": np.int32, "i64": np.int64}
Problem = tuple[np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


def problem(plan: Sm80Plan | Sm90Plan | Sm100Plan, sizes: tuple[int, ...] = ()) -> Problem:
    """A, B, the vectors, and C with zeros in rows that none names; exact. `sizes`: of groups of rows."""
    rng = np.random.default_rng(plan.m)
    if plan.batch == 1 or sizes:
        return _one(plan, rng, sizes)
    matrices = [_one(plan, rng, ()) for _ in range(plan.batch)]
    a, b, c = (np.stack([found[i] for found in matrices]) for i in (0, 1, 3))
    return a, b, {name: np.concatenate([found[2][name] for found in matrices]) for name in matrices[0][2]}, c


def is_exact(plan: Sm80Plan | Sm100Plan, device: str) -> bool:
    """True if a run gives the exact C, and changes no other element."""
    a, b, given, want = problem(plan)
    stored, out = stored_elements(plan, given), np.full_like(want, 7)
    found = plan.run(a, b, given=given, device=device, out=out).c
    return np.array_equal(found, want if stored is None else np.where(stored, want, 7))


def _one(plan: Sm80Plan | Sm90Plan | Sm100Plan, rng: np.random.Generator, sizes: tuple[int, ...]) -> Problem:
    indexed = plan.indexed
    assert indexed is not None
    most, kind = 1 if plan.c.dtype.bits == 8 else 3, np.float32 if plan.a.dtype.kind == "float" else np.int8
    a = rng.integers(-most, most + 1, (plan.rows_of_a, plan.k)).astype(kind)
    b = rng.integers(-most, most + 1, (*[len(sizes)] * bool(sizes), plan.k, plan.n)).astype(kind)
    given: dict[str, Any] = {}
    read = a.astype(np.float32)
    if indexed.gather is not None:
        given["rows"] = rng.integers(0, plan.rows_of_a, plan.m).astype(KINDS[indexed.gather.kind])
        read = read[given["rows"]]
    if sizes:
        given["offsets"] = np.cumsum([0, *sizes]).astype(np.int32)
        want = np.concatenate([read[x:y] @ b[e] for e, (x, y) in enumerate(pairwise(given["offsets"]))])
    else:
        want = read @ b
    if indexed.scatter is not None:
        given["out_rows"] = rng.permutation(plan.rows_of_c)[: plan.m].astype(KINDS[indexed.scatter.kind])
        product, want = want, np.zeros((plan.rows_of_c, plan.n), want.dtype)
        want[given["out_rows"]] = product
    exact = want.astype(np.int64) if plan.c.dtype.kind == "int" else want
    return a, b, given, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(exact)))
