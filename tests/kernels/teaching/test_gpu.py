"""On a GPU: operands as torch makes them, copies that are noted, refusals by name and rule, streams, large C."""

import numpy as np
import pytest

from layoutgemm.errors import OperandError
from layoutgemm.kernels import TeachingPlan
from tests import needs

torch = needs.module("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

M, N, K = 72, 136, 200


def integers(*shape, dtype=torch.bfloat16):
    """Small integers: f32 accumulation of their products is exact, so results compare with ==."""
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)


def product(a, b):
    return (a.double() @ b.double()).float()


def test_views_that_tensor_copies_take_are_not_copied():
    plan = TeachingPlan.derive(M, N, K, b="bf16:col")
    wide = integers(M, 2 * K)
    weights = integers(N, K)
    for a, b in ((wide[:, :K], weights.T), (wide[:, K:], weights.T), (wide[:, :K].contiguous(), weights.T)):
        result = plan.run(a, b, copy=False)
        assert result.copies == () and result.ran_on.startswith(torch.cuda.get_device_name())
        assert torch.equal(result.c, product(a, b))


COPIES = [
    (lambda x: torch.cat([x, x[:, :3]], 1)[:, :K], r"lines lie 203 \* 2 = 406 bytes apart"),
    (lambda x: torch.cat([x[:, :1], x], 1).flatten()[1:].as_strided((M, K), (K, 1)), "not of 16"),
    (lambda x: x.T.contiguous().T, r"the plan takes it row-major, but its strides are \(1, 72\)"),
    (lambda x: x[:1].expand(M, K), "lines of 200 elements lie 0 elements apart, so they overlap"),
    (lambda x: torch.cat([x, x], 1)[:, ::2], r"its strides are \(400, 2\)"),
]


@pytest.mark.parametrize("view, rule", COPIES, ids=range(len(COPIES)))
def test_views_that_they_do_not_take_are_copied_or_refused(view, rule):
    plan = TeachingPlan.derive(M, N, K)
    a, b = view(integers(M, K)), integers(K, N)
    result = plan.run(a, b)
    assert len(result.copies) == 1 and result.copies[0].startswith("a")
    assert torch.equal(result.c, product(a, b))
    with pytest.raises(OperandError, match=rule):
        plan.run(a, b, copy=False)


def test_one_line_has_no_pitch():
    for m, k in ((1, 17), (3, 1), (1, 1)):
        plan = TeachingPlan.derive(m, N, k, a="bf16:row" if m == 1 else "bf16:col")
        a, b = integers(m, k), integers(k, N)
        assert torch.equal(plan.run(a, b).c, product(a, b))


def test_out_with_its_own_pitch_keeps_the_gaps():
    plan = TeachingPlan.derive(M, N, K, c="bf16")
    whole = torch.full((M, N + 7), 5.0, dtype=torch.bfloat16, device="cuda")
    a, b = integers(M, K), integers(K, N)
    result = plan.run(a, b, out=whole[:, :N])
    assert result.c.data_ptr() == whole.data_ptr()
    assert torch.equal(whole[:, :N], product(a, b).bfloat16()) and bool((whole[:, N:] == 5).all())


def test_bad_operands_are_named():
    plan = TeachingPlan.derive(M, N, K)
    a, b = integers(M, K), integers(K, N)
    for arguments, text in (
        ((a, b.cpu()), "a is a torch tensor on cuda:0 and b a torch tensor on cpu"),
        ((a.half(), b), "a is torch.float16, the plan takes torch.bfloat16"),
        ((a, b.T), r"b has shape \(136, 200\)"),
        ((a, np.zeros((K, N), np.float32)), "b a NumPy array"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(*arguments)
    with pytest.raises(OperandError, match="move them to the CPU"):
        plan.run(a, b, device="reference")
    with pytest.raises(OperandError, match="out is on cpu, a and b are on cuda:0"):
        plan.run(a, b, out=torch.empty(M, N))
    with pytest.raises(OperandError, match="out, which is written to, shares memory with a"):
        square = integers(64, 64)
        TeachingPlan.derive(64, 64, 64, c="bf16").run(square, square.clone(), out=square)


def test_numpy_arrays_and_cpu_tensors_are_taken_to_the_gpu():
    plan = TeachingPlan.derive(M, N, K, a="bf16:col")
    a, b = integers(M, K).cpu(), integers(K, N).cpu()
    exact = (a.double() @ b.double()).float()
    for given in ((a, b), (a.float().numpy(), b.float().numpy())):
        result = plan.run(*given, device="cuda")
        assert "cuda" in result.ran_on and np.array_equal(np.asarray(result), exact.numpy())
    # the executor computes the same numbers
    assert np.array_equal(plan.run(a.float().numpy(), b.float().numpy(), device="reference").c, exact.numpy())


def test_a_stream_of_the_callers():
    plan = TeachingPlan.derive(M, N, K)
    a, b = integers(M, K), integers(K, N)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        c = plan.run(a, b).c
    stream.synchronize()
    assert torch.equal(c, product(a, b))


def test_more_than_2_to_the_31_elements_of_c():
    m, n, k = 65536 + 64, 32768 + 8, 8
    plan = TeachingPlan.derive(m, n, k, c="bf16")
    a, b = integers(m, k), integers(k, n)
    c = plan.run(a, b).c
    for rows in (slice(0, 128), slice(m - 128, m)):
        assert torch.equal(c[rows], product(a[rows], b).bfloat16())
