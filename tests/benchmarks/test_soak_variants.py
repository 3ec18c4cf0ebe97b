"""The draws of `benchmarks/soak_variants.py`, on the CPU."""

from __future__ import annotations

import random

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import soak_variants as soak


@pytest.mark.parametrize("kind", soak.DRAWS)
def test_draws_are_right_by_the_reference(kind: str) -> None:
    report = soak.soak(3, "cpu", 60.0, 2, [kind])
    assert sum(report.calls.values()) + sum(report.refused.values()) == 2
    assert not report.faults


def test_a_wrong_element_is_reported() -> None:
    drawn = soak.draw_grouped(random.Random("1"))
    calls = 0

    def call(t: soak.Tensors) -> soak.Tensors:
        nonlocal calls
        calls += 1
        c = drawn.call(t)["c"]
        if calls > 1:  # the first call is the reference
            c.view(-1)[-1] += 1.0
        return {"c": c}

    assert soak.fault(drawn, "cpu") == ""
    assert "1 of" in soak.fault(drawn._replace(call=call), "cpu")


def test_other_bits_and_changed_operands_are_reported() -> None:
    drawn = soak.draw_grouped(random.Random("1"))
    c = drawn.call(drawn.values)["c"].float()
    given, calls = [c, c, c + 2.0**-20 * c.abs().max()], 0  # of the reference, and of both calls

    def unsteady(t: soak.Tensors) -> soak.Tensors:
        nonlocal calls
        calls += 1
        return {"c": given[min(calls, 3) - 1]}

    def writes(t: soak.Tensors) -> soak.Tensors:
        c = unsteady(t)
        t["a"].zero_()
        return c

    assert soak.fault(drawn._replace(call=unsteady), "cpu") == "c: a second call gave other bits"
    given = [c, c, c]
    assert soak.fault(drawn._replace(call=writes), "cpu") == "a has changed"
