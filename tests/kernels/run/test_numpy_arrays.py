"""Running plans: what is taken, what is copied and noted, what is refused by name and rule. No GPU needed."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from layoutgemm.dtypes import f16, f32
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import TeachingPlan, error_bound
from layoutgemm.kernels.ladder.on_gpu import share_of_bound
from layoutgemm.kernels.run.torch_tensors import gpu_for
from tests import needs

torch = needs.module("torch")

from layoutgemm.torch_op.tunable.scaled_grouped import OperandSet, tunable


def arrays(m=8, n=16, k=24, kind=np.float32):
    rng = np.random.default_rng(0)
    return rng.integers(-3, 4, (m, k)).astype(kind), rng.integers(-3, 4, (k, n)).astype(kind)


PLAN = TeachingPlan.derive(8, 16, 24)


def test_result_says_where_it_ran():
    a, b = arrays()
    result = PLAN.run(a, b, device="reference")
    assert result.ran_on == "NumPy executor" and result.why == "" and result.copies == ()
    assert np.array_equal(np.asarray(result), a @ b)
    chosen = PLAN.run(a, b)
    found, why = gpu_for(PLAN)
    assert chosen.why == why and (chosen.ran_on == "NumPy executor") == (not found)


def test_numpy_views_of_any_stride():
    a, b = arrays()
    wide = np.zeros((16, 48), np.float32)
    wide[::2, ::2] = a
    for view in (wide[::2, ::2], np.asfortranarray(a), a[::-1][::-1]):
        assert np.array_equal(PLAN.run(view, b, device="reference").c, a @ b)


def test_values_are_rounded_to_bf16():
    a, b = arrays()
    a[0, 0] = 1 + 2**-8 + 2**-20  # rounds up to 1 + 2**-7
    result = PLAN.run(a, b, device="reference").c
    a[0, 0] = 1 + 2**-7
    assert np.array_equal(result, a @ b)


def test_pitch_that_a_tensor_map_cannot_take_is_noted_or_refused():
    plan = TeachingPlan.derive(8, 16, 17)
    a, b = arrays(k=17)
    result = plan.run(a, b, device="reference")
    assert np.array_equal(result.c, a @ b)
    assert result.copies == ("a: lines lie 17 * 2 = 34 bytes apart, no multiple of 16: copied with pitch 24",)
    with pytest.raises(OperandError, match=r"a: lines lie 17 \* 2 .* copy=True makes a copy"):
        plan.run(a, b, device="reference", copy=False)
    # one line has no pitch
    assert TeachingPlan.derive(1, 16, 17).run(a[:1], b, device="reference", copy=False).copies == ()


def test_out_is_filled_and_checked():
    a, b = arrays()
    out = np.full((8, 16), np.nan, np.float32)
    assert PLAN.run(a, b, out=out, device="reference").c is out and np.array_equal(out, a @ b)
    for bad, text in (
        (out.astype(np.float64), "float32 NumPy array"),
        (out[:4], "out has shape"),
        (1, "float32 NumPy array"),
    ):
        with pytest.raises(OperandError, match=text):
            PLAN.run(a, b, out=bad, device="reference")
    out.flags.writeable = False
    with pytest.raises(OperandError, match="read-only"):
        PLAN.run(a, b, out=out, device="reference")


BAD = [
    (lambda a, b: (a[:7], b), r"a has shape \(7, 24\), the plan takes \(8, 24\)"),
    (lambda a, b: (a, b.T), r"b has shape \(16, 24\), the plan takes \(24, 16\)"),
    (lambda a, b: (a, b[None]), "b has shape"),
    (lambda a, b: (a.astype(np.float64), b), "a is float64; the plan's bf16 is given as float32 or bfloat16"),
    (lambda a, b: (a, b.astype(np.int32)), "b is int32"),
    (lambda a, b: (a.tolist(), b), "a is a builtins.list; give NumPy arrays or torch tensors"),
    (lambda a, b: (torch.from_numpy(a).bfloat16(), b), "a is a torch tensor on cpu and b a NumPy array"),
    (
        lambda a, b: (torch.from_numpy(a), torch.from_numpy(b).bfloat16()),
        "a is torch.float32, the plan takes torch.bfloat16",
    ),
    (
        lambda a, b: (torch.from_numpy(a).bfloat16().to("meta"), torch.from_numpy(b).bfloat16()),
        "on meta and b a torch tensor on cpu",
    ),
]


@pytest.mark.parametrize("change, text", BAD, ids=range(len(BAD)))
def test_bad_operands(change, text):
    with pytest.raises(OperandError, match=text):
        PLAN.run(*change(*arrays()), device="reference")


def test_unknown_device():
    with pytest.raises(OperandError, match="device 'tpu': known are 'cuda', 'emulator', 'reference'"):
        PLAN.run(*arrays(), device="tpu")


def test_meta_tensors_have_no_values():
    tensors = [torch.from_numpy(x).bfloat16().to("meta") for x in arrays()]
    with pytest.raises(OperandError, match="a is on meta"):
        PLAN.run(*tensors)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="needs a machine without a GPU: it tests that one is asked for in vain"
)
def test_asking_for_a_gpu_in_vain():
    with pytest.raises(PlanError, match="device 'cuda' was asked for: torch finds no CUDA GPU"):
        PLAN.run(*arrays(), device="cuda")
    with pytest.raises(PlanError, match="torch finds no CUDA GPU"):
        PLAN.run(*[torch.from_numpy(x).bfloat16() for x in arrays()], device="cuda")


def test_torch_cpu_tensors_run_in_the_executor():
    a, b = (torch.from_numpy(x).bfloat16() for x in arrays())
    result = PLAN.run(a, b, device="reference")
    assert result.c.dtype == torch.float32 and torch.equal(result.c, a.float() @ b.float())
    half = TeachingPlan.derive(8, 16, 24, b="bf16:col", c="bf16").run(a, b.T.contiguous().T, device="reference")
    assert half.c.dtype == torch.bfloat16 and torch.equal(half.c, (a.float() @ b.float()).bfloat16())
    out = torch.empty(8, 16)
    assert PLAN.run(a, b, out=out, device="reference").c is out and torch.equal(out, a.float() @ b.float())
    for bad, text in (
        (out.bfloat16(), "out must be a torch.float32 tensor"),
        (out[:4], r"out has shape \(4, 16\)"),
        (torch.empty(16, 8).T, "rows must be contiguous"),
    ):
        with pytest.raises(OperandError, match=text):
            PLAN.run(a, b, out=bad, device="reference")


def test_error_bound_is_the_formula():
    plan = TeachingPlan.derive(2, 2, 40)
    a, b = np.ones((2, 40)), -np.ones((40, 2))
    assert np.allclose(error_bound(plan, a, b), 17 * 3 * 2.0**-23 * 40)
    narrow = TeachingPlan.derive(2, 2, 40, c="bf16")
    assert np.allclose(error_bound(narrow, a, b), 17 * 3 * 2.0**-23 * 40 * (1 + 2**-8) + 40 * 2**-8)


def test_checks_on_a_gpu_take_the_same_bound():
    """The ladder and the tuner measure errors in units of `error_bound`, here on the CPU."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, 200, generator=generator).bfloat16() for _ in range(2))
    exact = a.double() @ b.double().T
    edge = torch.from_numpy(error_bound(TeachingPlan.derive(8, 8, 200), a.double().numpy(), b.double().T.numpy()))
    level = SimpleNamespace(c=f32)
    for share in (0.5, 1.5):
        found = share_of_bound(level, a, b, exact + share * edge, 200)
        assert found == pytest.approx(share), share
    tiny = torch.full((1, 1), 2.0**-26)  # rounded to f16: half of the smallest value is the error
    assert share_of_bound(SimpleNamespace(c=f16), tiny.bfloat16(), torch.ones(1, 1).bfloat16(), tiny * 0, 1) < 1
    product = tunable(8, 8, 200, "bf16", "k", "mn", None, None, 1)
    assert product is not None
    for beyond, verdict in ((0.0, True), (0.02, False)):  # bf16 is rounded by 0.4% at most
        out = (exact * (1 + beyond)).bfloat16()
        assert (product.off(OperandSet(a, b.T[None], {}, torch.tensor([0, 8]), out)) <= 1) is verdict


def test_running_without_a_gpu_does_not_load_the_dsl():
    """In a process of its own: tests beside this one load it."""
    program = (
        "import sys, numpy as np; from layoutgemm.kernels import TeachingPlan; ones = np.ones((16, 16), np.float32); "
        "TeachingPlan.derive(16, 16, 16).run(ones, ones, device='reference'); "
        "assert 'cutlass' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
