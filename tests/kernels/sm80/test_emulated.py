"""The Ampere kernel, compiled, in the emulator: every type, order, alignment and form is exact, and nothing is found.

Inputs are small integers, of which every sum is exact; NaN lies between their lines, and what lies between C's has to
stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.arch import ARCHES
from layoutgemm.emulator.api import ORDERS, Emulation, emulate_host
from layoutgemm.emulator.host.launcher import HostFunction
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels import Sm80Config
from layoutgemm.kernels.compile.compiler import _machine_code
from layoutgemm.kernels.run.emulated import emulate_launch, host_parameters
from tests import needs
from tests.kernels.sm80.table import FIRST, LATER, TABLE, Product

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]


def arguments(product: Product, seed: int = 0) -> tuple[Any, tuple[Any, ...], Any, Any]:
    """(plan, arguments of the launch, words of C, what they have to be)."""
    plan = product.plan()
    a, b, want = product.values(seed)
    (bits_a, lda, pitch_a), (bits_b, ldb, pitch_b) = (product.operand(plan, *pair) for pair in (("a", a), ("b", b)))
    unit = max(1, plan.config.align[2] // plan.c.dtype.bytes)
    ldc = (-(-product.n // unit) + product.spare[2]) * unit
    shape = (product.batch, product.m + 1, ldc)
    words = plan.c.dtype.encode(np.full(shape, np.nan) if plan.c.dtype.kind == "float" else np.full(shape, -7))
    expected = words.copy()
    expected[:, :-1, : product.n] = plan.c.dtype.encode(want)
    sizes = (product.m, product.n, product.k, product.batch, lda, ldb, ldc, pitch_a, pitch_b, words[0].size)
    sizes += (2,) * plan.config.persistent
    return plan, (bits_a, bits_b, words, *sizes), words, expected


def emulate(product: Product, policy: Policy | None = None, seed: int = 0) -> Emulation:
    """Run a product; AssertionError when an element of C is wrong, or one beside C has changed."""
    plan, given, words, expected = arguments(product, seed)
    done = emulate_launch(plan, given, policy or ORDERS[0], progress=False)
    wrong = np.argwhere(words != expected)
    assert not len(wrong), f"{plan}: {len(wrong)} elements, the first at {wrong[0]}\n{done.report()}"
    return done


def test_the_table_has_every_type_order_and_form() -> None:
    plans = [product.plan() for product in TABLE.values()]
    assert {(p.a.dtype.name, p.a.order, p.b.order) for p in plans} >= {
        (kind, a, b) for kind in ("bf16", "f16", "tf32", "i8", "e4m3") for a in ("row", "col") for b in ("row", "col")
    }
    assert (
        {p.a.load.kind for p in plans}
        == {"ldmatrix", "ldmatrix.trans", "words", "bytes"}
        == {p.b.load.kind for p in plans}
    )
    assert {p.a.copy.vector for p in plans} == {1, 2, 4, 8, 16} and {p.c.dtype.name for p in plans} == {
        "bf16", "f16", "f32", "i32",
    }  # fmt: skip
    assert {p.config.ahead for p in plans} == {True, False} and {p.stages for p in plans} == {2, 3, 4}
    assert {p.steps for p in plans} == {1, 2, 3, 4}
    assert set(TABLE) >= FIRST and len(TABLE) >= 50


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LATER)) for n in TABLE])
def test_every_form_is_exact_and_silent(name: str) -> None:
    done = emulate(TABLE[name])
    # TMA refills what ldmatrix has read, behind an mbarrier and without a proxy fence, for which PTX asks: lint.
    refills = "fence.proxy.async by each thread that read"
    others = [one for one in done.findings if one.kind != "lint" or not one.orders.startswith(refills)]
    assert not others and (not done.findings or "TMA" in name), done.report()


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        pytest.param(
            arch, kind, marks=[pytest.mark.slow] * ((arch, kind) not in (("sm_86", "bf16"), ("sm_89", "e4m3")))
        )
        for arch in ("sm_80", "sm_86", "sm_87", "sm_89", "sm_120a", "sm_121a", "sm_120f")
        for kind in ("bf16", "f16", "tf32", "i8", "u8", "e4m3", "e5m2")
        if kind not in ("e4m3", "e5m2") or "mma.sync.e4m3" in ARCHES[arch].features
    ],
)
def test_every_architecture_and_type_gives_the_product(arch: str, kind: str) -> None:
    made = plan(45, 40, 144, arch=arch, a=kind, b=f"{kind}:col", config=Sm80Config((64, 64), stages=2, warps=(2, 2)))
    whole, low = np.dtype({"i8": "int8", "u8": "uint8"}.get(kind, "float32")), 0 if kind == "u8" else -3
    rng = np.random.default_rng(3)
    a, b = (rng.integers(low, 4, shape).astype(whole) for shape in ((45, 144), (144, 40)))
    assert np.array_equal(made.run(a, b, device="emulator").c, a.astype(np.int64) @ b.astype(np.int64))


ORDERED = ("bf16 col-row", "late", "two stages", "odd pitches")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "late")) for n in ORDERED])
def test_every_order_of_events(name: str) -> None:
    for policy in ORDERS[1:]:
        done = emulate(TABLE[name], policy, seed=1)
        assert not done.findings, done.report()


# ----------------------------------------------------------------------------------------------------- when it is wrong


# Which call of the bridge's function is left out while the kernel is traced: before the loop, in it, behind it.
LEFT_OUT = [("block_sync", 0), ("block_sync", 1), ("block_sync", 2), ("wait_copies", 0), ("wait_copies", 1)]


@pytest.mark.parametrize(
    ("what", "which"), [pytest.param(*pair, marks=[pytest.mark.slow] * (pair[1] == 0)) for pair in LEFT_OUT]
)
def test_a_missing_barrier_is_a_race(what: str, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.kernels.dsl import bridge
    from layoutgemm.kernels.sm80.device.gemm import Sm80GemmKernel

    whole, calls = getattr(bridge, what), []

    def some(*given: Any) -> None:
        calls.append(given)
        if len(calls) != which + 1:
            whole(*given)

    monkeypatch.setattr(bridge, what, some)
    product = Product(40, 40, 180, b="bf16")  # six k tiles: the zeros behind the last are in stage 0, as C is
    plan, given, _, _ = arguments(product)
    parts = _machine_code(Sm80GemmKernel(plan), plan.arch.name, plan.parameters, "broken")
    host = HostFunction.link(parts["kernel.o"], parts["kernel.ptx"].decode(), host_parameters(plan.parameters))
    try:
        done = emulate_host(host, given, policy=ORDERS[0], progress=False)
        found = done.report()
    except EmulatorError as error:
        found = str(error)
    assert "race" in found and len(calls) == 3, found


def test_run_says_where_and_gives_the_product() -> None:
    product = Product(20, 30, 40, b="bf16")
    plan = product.plan()
    a, b, want = product.values()
    out = np.empty((20, 30), np.float32)
    result = plan.run(a[0].astype(np.float32), b[0].astype(np.float32), out=out, device="emulator")
    assert result.ran_on == "emulator" and result.c is out
    np.testing.assert_array_equal(out, want[0])
