"""Operands of products with indexed rows, and their exact C."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from layoutgemm.kernels import Sm90Plan, Sm100Plan

KINDS = {"i32": np.int32, "i64": np.int64}


def problem(
    plan: Sm90Plan | Sm100Plan, sizes: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray, dict[str, Any], np.ndarray]:
    """A, B, the vectors, and C with zeros in rows that none names; exact. `sizes`: of groups of rows."""
    rng, indexed = np.random.default_rng(plan.m), plan.indexed
    assert indexed is not None
    most = 1 if plan.c.dtype.bits == 8 else 3
    a = rng.integers(-most, most + 1, (plan.rows_of_a, plan.k)).astype(np.float32)
    b = rng.integers(-most, most + 1, (*[len(sizes)] * bool(sizes), plan.k, plan.n)).astype(np.float32)
    given: dict[str, Any] = {}
    read = a
    if indexed.gather is not None:
        given["rows"] = rng.integers(0, plan.rows_of_a, plan.m).astype(KINDS[indexed.gather.kind])
        read = a[given["rows"]]
    if sizes:
        given["offsets"] = np.cumsum([0, *sizes]).astype(np.int32)
        want = np.concatenate([read[x:y] @ b[e] for e, (x, y) in enumerate(pairwise(given["offsets"]))])
    else:
        want = read @ b
    if indexed.scatter is not None:
        given["out_rows"] = rng.permutation(plan.rows_of_c)[: plan.m].astype(KINDS[indexed.scatter.kind])
        product, want = want, np.zeros((plan.rows_of_c, plan.n), np.float32)
        want[given["out_rows"]] = product
    return a, b, given, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want)))
