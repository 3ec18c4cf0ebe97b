"""Boxes that end where their matrix does: every extent, shares of clusters, and what is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.kernels import GemmPlan
from layoutgemm.kernels.derive import EdgeBoxes
from layoutgemm.kernels.sm90.edges import ends_check
from layoutgemm.kernels.sm90.plan import Sm90Plan
from tests.kernels.sm90.table import TABLE, small


def plan(m: int, n: int, k: int = 72, **given: Any) -> Any:
    orders = {"b": given.pop("b", "bf16:col"), "c": given.pop("c", "bf16")}
    return GemmPlan.derive(m, n, k, **orders, config=small(**{"loader": "warp", **given}))


def outcome(made: Any) -> str:
    """ "" where the executor gives the product, else what is wrong."""
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (made.m, made.k)).astype(np.float32)
    b = rng.integers(-3, 4, (made.k, made.n)).astype(np.float32)
    try:
        c = made.run(a, b, device="reference").c
    except ValueError as error:
        return str(error)
    return "" if np.array_equal(c, a @ b) else "wrong values"


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=str)
def test_every_extent(cluster: tuple[int, int]) -> None:
    for m in (1, 8, 9, 63, 64, 65, 71, 129, 193):
        for n in (1, 31, 33, 65):
            assert outcome(plan(m, n, cluster=cluster)) == "", (m, n)


def test_the_types_that_c_is_stored_as() -> None:
    for c, unit in (("f32", 4), ("bf16", 8), ("f32:col", 4)):
        made = plan(70, 40, c=c)
        assert made.a.ends.unit == made.b.ends.unit == unit and outcome(made) == ""
    eight = GemmPlan.derive(70, 41, 72, a="e4m3", b="e4m3:col", c="e4m3", config=small(loader="warp"))
    assert eight.b.ends.unit == 16 and eight.b.ends.last(41) == 16  # 9, up to 16 bytes of C


def test_which_operands_end_so() -> None:
    whole = {
        "rows of B": plan(70, 40, b="bf16:row").b,
        "loads between the products": plan(70, 40, loader="self").a,
        "halves of a tile": GemmPlan.derive(
            300,
            150,
            328,
            b="bf16:col",
            config=small(128, 64, staged_epilogue_k_tiles=2, loader="warp", chunks=1, buffers=2),
        ).b,
        "few rows, which are a box of their own": TABLE["16 rows"].plan().a,
        "a gate and what it multiplies": Sm90Plan.derive(
            70, 40, 72, b="bf16:col", gated="silu", config=small(loader="warp")
        ).b,
    }
    assert {name: operand.ends for name, operand in whole.items() if operand.ends is not None} == {}
    assert plan(70, 40).a.ends == EdgeBoxes("m", 64, 1, 0, 128, 8) and plan(70, 40).a.maps == 2
    assert plan(70, 40, cluster=(2, 1)).b.ends == EdgeBoxes("n", 16, 2, 16, 128, 8)
    halves_of_k = plan(70, 40, cluster=(2, 1), tile_k=128).b.ends
    assert halves_of_k == EdgeBoxes("n", 32, 2, 0, 128, 8)


@pytest.mark.parametrize("cluster", [(1, 1), (1, 2)], ids=str)
def test_wrong_plans_are_found(cluster: tuple[int, int]) -> None:
    made = plan(70, 40, cluster=cluster)
    a, right = made.a, made.a.ends
    assert ends_check(a, 64, made.c.dtype) and outcome(made) == ""
    wrong = {
        "a box too low": replace(right, box=right.box - 8),
        "bytes of a row": replace(right, line=right.line + 16),
        "units of C": replace(right, unit=24),
        "shares": replace(right, shares=right.shares + 1),
    }
    if cluster == (1, 2):
        wrong["shares too near"] = replace(right, step=right.step - 8)
    for name, ends in wrong.items():
        mutant = replace(made, a=replace(a, ends=ends))
        assert not ends_check(mutant.a, 64, made.c.dtype), name
        assert not mutant.check(), name
        if name not in ("units of C", "shares too near"):  # which copy more from outside: no other product
            assert outcome(mutant), name


def test_it_is_explained() -> None:
    text = plan(408, 40).explain()
    assert "A's boxes end with its rows: of 408 the last box has 24 of 64, by a tensor map of its own" in text
