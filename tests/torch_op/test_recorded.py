"""Products that autograd records in eager mode: their launches forward and backward, and where gradients lie.

On the CPU: `host_launches` computes from the addresses, sizes and distances that a kernel would get.
"""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.utils.checkpoint import checkpoint

from layoutgemm import Sm90Config, matmul
from layoutgemm.errors import TensorError
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.torch_op import api, prepared
from layoutgemm.torch_op.autograd import bias as bias_launch
from tests.torch_op.host_launches import HostLaunches, host_launches, memory, values_of

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostLaunches]:
    with host_launches(monkeypatch) as noted:
        yield noted


def integers(*shape: int, kind: Any = BF16) -> Any:
    """Small ones, so that products and their sums are exact in bfloat16."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-1, 2, shape, generator=generator).to(kind)


def leaf(x: Any) -> Any:
    return x.detach().requires_grad_()


# the leaves, and the operands that are made of them
CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[Any, Any], tuple[Any, Any]]]] = {
    "rows": (lambda: (integers(24, 16), integers(16, 32)), lambda x, w: (x, w)),
    "a linear layer": (lambda: (integers(24, 16), integers(32, 16)), lambda x, w: (x, w.t())),
    "a sequence": (lambda: (integers(3, 8, 16), integers(32, 16)), lambda x, w: (x, w.mT)),
    "an odd batch": (lambda: (integers(3, 7, 16), integers(32, 16)), lambda x, w: (x, w.t())),
    "columns": (lambda: (integers(16, 24), integers(16, 32)), lambda x, w: (x.t(), w)),
    "both columns": (lambda: (integers(16, 24), integers(32, 16)), lambda x, w: (x.t(), w.t())),
    "a batch of both": (lambda: (integers(3, 8, 16), integers(3, 32, 16)), lambda x, w: (x, w.mT)),
    "heads": (lambda: (integers(2, 8, 3, 16), integers(2, 3, 16, 8)), lambda x, w: (x.transpose(1, 2), w)),
    "a shared left": (lambda: (integers(24, 16), integers(3, 16, 32)), lambda x, w: (x, w)),
}
ONE_LAUNCH_EACH = [name for name in CASES if name not in ("heads", "a shared left")]


def wanted(name: str, grad: Any) -> list[Any]:
    leaves, made = CASES[name]
    exact = [leaf(x.double()) for x in leaves()]
    torch.matmul(*made(*exact)).backward(grad.double())
    return [x.grad for x in exact]


@pytest.mark.parametrize("name", CASES)
def test_gradients_by_kernels(name: str, launches: HostLaunches) -> None:
    leaves, made = CASES[name]
    for _ in range(3):
        mine = [leaf(x) for x in leaves()]
        c = matmul(*made(*mine))
        grad = integers(*c.shape)
        assert c.grad_fn is not None and torch.equal(c.double(), torch.matmul(*made(*[x.double() for x in leaves()])))
        c.backward(grad)
        for x, want in zip(mine, wanted(name, grad), strict=True):
            assert x.grad.dtype == BF16 and torch.equal(x.grad.double(), want)
    assert len(launches.made) >= 9


@pytest.mark.parametrize("name", ONE_LAUNCH_EACH)
def test_a_backward_pass_again_is_two_launches(
    name: str, launches: HostLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, made = CASES[name]
    for again in (False, True):
        mine = [leaf(x) for x in leaves()]
        c = matmul(*made(*mine))
        if again:
            monkeypatch.setattr(api, "gradients", None)  # the long way is shut
        launches.made.clear()
        launches.empties.clear()
        grad = integers(*c.shape)
        c.backward(grad)
        assert [x.copies for x in launches.made] == [(None, None, None)] * 2
        # the memory that the kernel wrote is `.grad`: nothing is copied into the leaf's layout
        written = {x.data_ptr() for x in launches.empties}
        assert {x.grad.data_ptr() for x in mine} == written and len(written) == 2
        assert all(x.grad.stride() == x.stride() for x in mine)
        for x, want in zip(mine, wanted(name, grad), strict=True):
            assert torch.equal(x.grad.double(), want)


def test_one_gradient_is_one_launch(launches: HostLaunches) -> None:
    x, w, grad = integers(24, 16), integers(32, 16), integers(24, 32)
    for wants in ((True, False), (False, True)):
        for _ in range(2):
            a, b = (t.clone().requires_grad_(want) for t, want in zip((x, w), wants))
            c = matmul(a, b.t())
            launches.made.clear()
            # an operand is kept for the other's gradient alone
            assert [t is not None for t in c.grad_fn.saved_tensors] == [*wants[::-1], False]
            c.backward(grad)
            assert len(launches.made) == 1 and [t.grad is not None for t in (a, b)] == list(wants)
            assert torch.equal(a.grad, grad @ w) if wants[0] else torch.equal(b.grad, grad.mT @ x)


@pytest.mark.parametrize("name", ["a linear layer", "a sequence", "a batch of both"])
def test_a_stretched_gradient_is_copied_once(name: str, launches: HostLaunches) -> None:
    """The gradient of a sum: no product copies it again."""
    leaves, made = CASES[name]
    for _ in range(2):
        mine = [leaf(x) for x in leaves()]
        c = matmul(*made(*mine))
        launches.made.clear()
        with torch.profiler.profile() as seen:
            c.sum().backward()
        assert [x.copies for x in launches.made] == [(None, None, None)] * 2
        for x, want in zip(mine, wanted(name, torch.ones(c.shape)), strict=True):
            assert torch.equal(x.grad.double(), want)
    assert sum(event.count for event in seen.key_averages() if event.key == "aten::clone") == 1


@pytest.mark.parametrize("bias", [None, BF16, F32])
@pytest.mark.parametrize("wants", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("rows", [(24,), (3, 8)])
def test_a_layer_s_weight_is_the_operand_itself(
    rows: tuple[int, ...], wants: tuple[bool, bool], bias: Any, launches: HostLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No view of it has a derivative, and its gradient lies as the weight does."""
    values = integers(*rows, 16), integers(32, 16), None if bias is None else integers(32, kind=bias)
    grad = integers(*rows, 32)
    for again in range(4):
        x, weight = (t.clone().requires_grad_(want) for t, want in zip(values, wants))
        added = None if bias is None else leaf(values[2])
        if again == 3:
            monkeypatch.setattr(api, "matmul", None)  # the long ways are shut
            monkeypatch.setattr(api, "gradients", None)
        c = api.linear(x, weight, added, "relu")
        nodes = [type(node).__name__ for node, _ in c.grad_fn.next_functions if node is not None]
        assert set(nodes) == {"AccumulateGrad"}
        launches.made.clear()
        launches.empties.clear()
        c.backward(grad)
        exact = [t.double().requires_grad_() for t in (*values[:2], integers(32) if bias is None else values[2])]
        sums = exact[0] @ exact[1].mT
        want = torch.relu(sums if bias is None else sums + exact[2])
        want.backward(grad.double())
        assert torch.equal(c.double(), want) and len(launches.made) == sum(wants)
        for mine, theirs in zip((x, weight, added), exact):
            if mine is not None and mine.requires_grad:
                assert torch.equal(mine.grad.double(), theirs.grad) and mine.grad.dtype == mine.dtype
        if wants[1]:
            assert weight.grad.stride() == weight.stride()
            assert weight.grad.data_ptr() in {t.data_ptr() for t in launches.empties}


def test_a_layer_has_second_derivatives_hooks_and_refusals(launches: HostLaunches) -> None:
    x, weight, grad = leaf(integers(24, 16)), leaf(integers(32, 16)), integers(24, 32)
    y, exact = leaf(x.double()), leaf(weight.double())
    for _ in range(3):
        found = []
        for a, b in ((x, weight), (y, exact)):
            c = api.linear(a, b) if a.dtype == BF16 else a @ b.mT
            (first,) = torch.autograd.grad(c, a, grad.to(a.dtype), create_graph=True)
            found.append((first, *torch.autograd.grad(first, b, integers(24, 16).to(a.dtype))))
        assert all(torch.equal(mine.double(), theirs) for mine, theirs in zip(*found))
    odd = leaf(torch.zeros(32 * 16 + 1, dtype=BF16)[1:].view(32, 16).copy_(weight.detach()))
    for w in (odd, odd, leaf(torch.empty(16, 32, dtype=BF16).t().copy_(weight.detach()))):
        api.linear(x, w).backward(grad)
        assert torch.equal(w.grad, grad.mT @ x) and w.grad.stride() == w.stride()
        w.grad = None
    seen: list[Any] = []
    handle = weight.register_hook(lambda given: (seen.append(given), 2 * given)[1])
    api.linear(x, weight).backward(grad)
    assert torch.equal(weight.grad, 2 * (grad.mT @ x)) and seen[0].shape == weight.shape
    handle.remove()
    c = api.linear(x, weight)
    with torch.no_grad():
        weight.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.backward(grad)
    with pytest.raises(TensorError, match="K is 16 in a and 17 in b"):
        api.linear(x, leaf(integers(32, 17)))


# ----------------------------------------------------------------------------------------------------- autograd's own


def test_accumulation_is_in_place(launches: HostLaunches) -> None:
    """Micro-batches add to the tensor that `.grad` is, also to the caller's own."""
    weight = leaf(integers(32, 16))
    total = torch.zeros(32, 16, dtype=BF16)
    seen = []
    for step in range(3):
        x, grad = integers(8 + 8 * step, 16), integers(8 + 8 * step, 32)
        matmul(x, weight.t()).backward(grad)
        seen.append((weight.grad, weight.grad.data_ptr()))
        assert seen[0][0] is weight.grad and seen[0][1] == seen[-1][1]
        total += grad.mT @ x
        assert torch.equal(weight.grad, total)
    mine = torch.full((32, 16), 2.0, dtype=BF16)
    weight.grad = mine
    matmul(integers(8, 16), weight.t()).backward(integers(8, 32))
    assert weight.grad is mine and torch.equal(mine, 2 + integers(8, 32).mT @ integers(8, 16))


def test_hooks_see_gradients(launches: HostLaunches) -> None:
    seen: list[str] = []
    for _ in range(2):
        x, weight = leaf(integers(24, 16)), leaf(integers(32, 16))
        seen.clear()
        x.register_hook(lambda grad: (seen.append("x"), 2 * grad)[1])
        weight.register_post_accumulate_grad_hook(lambda w: seen.append(f"weight {w.grad is not None}"))
        c = matmul(x, weight.t())
        c.register_hook(lambda grad: (seen.append("c"), -grad)[1])
        grad = integers(24, 32)
        c.backward(grad)
        assert seen[0] == "c" and sorted(seen[1:]) == ["weight True", "x"]
        assert torch.equal(x.grad, 2 * (-grad @ weight)) and torch.equal(weight.grad, -grad.mT @ x)


def test_a_graph_is_kept_and_freed(launches: HostLaunches) -> None:
    x, weight, grad = leaf(integers(24, 16)), leaf(integers(32, 16)), integers(24, 32)
    c = matmul(x, weight.t())
    c.backward(grad, retain_graph=True)
    first = weight.grad.clone()
    c.backward(grad)
    assert torch.equal(weight.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        c.backward(grad)


def test_an_operand_that_was_written_to_is_refused(launches: HostLaunches) -> None:
    x, weight = leaf(integers(24, 16)), leaf(integers(32, 16))
    for _ in range(2):
        c = matmul(x, weight.t())
        with torch.no_grad():
            weight.mul_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            c.backward(integers(24, 32))


def test_gradients_of_gradients(launches: HostLaunches) -> None:
    for _ in range(2):
        mine = leaf(integers(24, 16)), leaf(integers(16, 32))
        theirs = tuple(leaf(x.double()) for x in mine)
        found = []
        for a, b in (mine, theirs):
            c = matmul(a, b) if a.dtype == BF16 else a @ b
            (first,) = torch.autograd.grad(c, a, integers(24, 32).to(a.dtype), create_graph=True)
            found.append((first, *torch.autograd.grad(first, b, integers(24, 16).to(a.dtype))))
        assert all(torch.equal(x.double(), y) for x, y in zip(*found))


def test_saved_tensors_may_come_back_elsewhere(launches: HostLaunches) -> None:
    """Hooks of saved tensors, as offloading has them, with other strides too."""
    x, weight, grad = integers(24, 16), integers(32, 16), integers(24, 32)
    for unpack in (torch.clone, lambda t: t.mT.contiguous().mT, lambda t: torch.zeros(99, 99).to(t)[: len(t), :0]):
        a, b = leaf(x), leaf(weight)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            c = matmul(a, b) if b.shape[0] == 16 else matmul(a, b.t())
        if unpack(x).shape != x.shape:
            with pytest.raises(RuntimeError, match="K is 32 in a and 0 in b"):
                c.backward(grad)
            continue
        c.backward(grad)
        assert torch.equal(a.grad, grad @ weight) and torch.equal(b.grad, grad.mT @ x)


def test_activations_are_offloaded_and_computed_again(launches: HostLaunches) -> None:
    """As torch's own functions for it do; an operand that is not kept is not handed to their hooks."""
    x, weight, grad = integers(24, 16), integers(32, 16), integers(24, 32)
    want = torch.relu(x @ weight.t()) > 0
    for a, reentrant in ((leaf(x), None), (x, None), (leaf(x), True), (leaf(x), False)):
        b = leaf(weight)

        def layer(a: Any, b: Any = b) -> Any:
            return matmul(a, b.t(), activation="relu")

        if reentrant is None:
            with torch.autograd.graph.save_on_cpu():
                c = layer(a)
        else:
            c = checkpoint(layer, a, use_reentrant=reentrant)
        c.backward(grad)
        assert torch.equal(b.grad, (grad * want).mT @ x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_gate_in_a_checkpoint(reentrant: bool, launches: HostLaunches) -> None:
    """A reentrant one has the gated kernel's result first, and torch's gate later."""
    x, weight, grad = leaf(integers(24, 16)), leaf(integers(64, 16)), integers(24, 32)
    exact = [leaf(each.double()) for each in (x, weight)]

    def wanted_gate(a: Any, b: Any) -> Any:
        gate, up = torch.matmul(a, b.mT).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    for _ in range(3):
        x.grad = weight.grad = None
        c = checkpoint(lambda a, b: matmul(a, b.mT, activation="swiglu"), x, weight, use_reentrant=reentrant)
        torch.testing.assert_close(c.double(), wanted_gate(*exact), rtol=2**-6, atol=2**-6)
        c.backward(grad)
    wanted_gate(*exact).backward(grad.double())
    for mine, other in zip((x, weight), exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=2**-5, atol=0.25)
    assert any(each.kernel.gated for each in launches.made) == reentrant


def test_a_graph_leaves_no_cycle(launches: HostLaunches) -> None:
    """Operands and result are freed with their last name, with and without a backward pass."""
    weight = leaf(integers(32, 16))
    for backward in (True, False, True, False):
        x = leaf(integers(24, 16)) * 1
        c = matmul(x, weight.t(), activation="relu")
        gone = [weakref.ref(t) for t in (x, c, c.grad_fn)]
        if backward:
            c.backward(integers(24, 32))
        launches.empties.clear()
        gc.disable()
        del x, c
        assert [each() for each in gone] == [None] * 3
        gc.enable()


def test_gradients_of_other_forms_are_not_taken_for_guarded_ones(launches: HostLaunches) -> None:
    """A backward pass that was made twice is found by a guard; another gradient, operand or address is another pass."""
    x, w = leaf(integers(24, 16)), leaf(integers(16, 32))
    plain, odd = integers(24, 32), torch.zeros(24 * 32 + 1, dtype=BF16)[1:].view(24, 32)
    odd.copy_(plain)
    for grad in (
        plain,
        plain,
        plain,
        integers(32, 24).t(),
        plain[:1].expand(24, 32),
        odd,
        torch._neg_view(plain),
        plain,
    ):
        x.grad = w.grad = None
        matmul(x, w).backward(grad)
        assert torch.equal(x.grad, (grad.float() @ w.detach().float().t()).bfloat16())
        assert torch.equal(w.grad, (x.detach().float().t() @ grad.float()).bfloat16())
    square = leaf(integers(16, 16))
    for _ in range(4):  # one tensor twice has no guard
        square.grad = None
        matmul(square, square).backward(integers(16, 16))
    exact = leaf(square.float())
    (exact @ exact).backward(integers(16, 16).float())
    assert torch.equal(square.grad, exact.grad.bfloat16())


def test_a_wide_result_has_gradients_of_its_operands_type(launches: HostLaunches) -> None:
    for _ in range(2):
        x, weight, grad = leaf(integers(24, 16)), leaf(integers(32, 16)), integers(24, 32, kind=F32)
        matmul(x, weight.t(), out_dtype=F32).backward(grad)
        assert x.grad.dtype == BF16 and torch.equal(x.grad, grad.to(BF16) @ weight)


# ------------------------------------------------------------------------------------------------- bias and activation


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("kind", [BF16, F32])
def test_bias_and_relu_are_in_the_kernel(activation: str | None, kind: Any, launches: HostLaunches) -> None:
    x, weight, bias, grad = integers(3, 8, 16), integers(32, 16), integers(32, kind=kind), integers(3, 8, 32)
    for again in (False, True):
        a, b, added = leaf(x), leaf(weight), leaf(bias)
        launches.made.clear()
        c = matmul(a, b.t(), bias=added, activation=activation)
        assert len(launches.made) == 1 and launches.made[0].kernel.epilogue is not None
        c.backward(grad)
        assert len(launches.made) == 3
        exact = [leaf(t.double()) for t in (x, weight, bias)]
        want = exact[0] @ exact[1].t() + exact[2]
        want = torch.relu(want) if activation else want
        want.backward(grad.double())
        assert torch.equal(c.double(), want)
        for mine, theirs, like in zip((a, b, added), exact, (x, weight, bias)):
            assert mine.grad.dtype == like.dtype and torch.equal(mine.grad.double(), theirs.grad), again


def test_a_bias_alone_has_a_gradient(launches: HostLaunches) -> None:
    for _ in range(2):
        bias = leaf(integers(32))
        c = matmul(integers(24, 16), integers(16, 32), bias=bias)
        launches.made.clear()
        c.backward(integers(24, 32))
        assert not launches.made and torch.equal(bias.grad, integers(24, 32).sum(0))
        with torch.no_grad():
            assert not matmul(integers(24, 16), integers(16, 32), bias=bias).requires_grad


def test_other_activations_are_torch_s(launches: HostLaunches) -> None:
    """Their derivative takes the sums, which no kernel of one result keeps."""
    x, weight = leaf(integers(24, 16)), leaf(integers(16, 32))
    y, z = (leaf(t.double()) for t in (x, weight))
    for _ in range(2):
        x.grad = weight.grad = None
        matmul(x, weight, activation="gelu").backward(integers(24, 32))
    torch.nn.functional.gelu(y @ z).backward(integers(24, 32).double())
    assert torch.allclose(x.grad.double(), y.grad, rtol=2**-6, atol=0.1)


# ------------------------------------------------------------------------------------------------------------ the host


def calls_of(run: Callable[[], object]) -> int:
    """Calls of Python's and C's functions, as a profiler sees them: the host's work without a clock."""
    count = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def test_the_host_does_little(launches: HostLaunches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded product adds the graph's node to one that is not; a backward pass is two launches, and one key."""
    monkeypatch.setattr("tests.torch_op.host_launches.compute_launch", lambda solution, values: None)
    x, weight, grad = leaf(integers(24, 16)), leaf(integers(32, 16)), integers(24, 32)
    plain = x.detach(), weight.detach().t()
    kept = [matmul(x, weight.t()) for _ in range(4)]
    for c in kept[:2]:
        c.backward(grad)
    columns = weight.t()
    for _ in range(2):  # the second time, the guard is noted as the last one of its weight
        matmul(*plain), matmul(x, columns)
    alone, recorded = calls_of(lambda: matmul(*plain)), calls_of(lambda: matmul(x, columns))
    assert alone <= 23 and recorded <= alone + 5, (alone, recorded)
    node = kept[2].grad_fn
    with torch.no_grad():
        backward = calls_of(lambda: node.apply(grad))
    assert backward <= 42, backward


def test_calls_are_counted() -> None:
    assert calls_of(lambda: [copy.copy(1) for _ in range(3)]) > calls_of(lambda: copy.copy(1)) > 1


def test_guards_of_layers_tell_other_tensors_and_go_with_their_launches(launches: HostLaunches) -> None:
    x, weight, bias = leaf(integers(16, 16)), leaf(integers(16, 16)), leaf(integers(16))
    turned = leaf(torch.empty(16, 16, dtype=BF16).t().copy_(weight.detach()))  # the same shape in other strides
    for again in range(3):
        for w, added in (
            (weight, None),
            (turned, None),
            (weight, bias),
            (weight, bias.detach()),
            (weight.detach(), bias),
        ):
            c = api.linear(x, w, added)
            exact = x.double() @ w.double().mT
            assert torch.equal(c.double(), exact if added is None else exact + added.double())
            wants = torch.autograd.grad(c.sum(), [t for t in (x, w, added) if t is not None and t.requires_grad])
            assert torch.equal(wants[0], torch.ones_like(c) @ w)
        found = [guard for guards in prepared.PREPARED.seen.values() for guard in guards]
        assert len(found) == (5 if again else 3)
    before = len(launches.made)
    api.linear(x.half(), weight.half())
    assert len(launches.made) == before + 1
    prepared.forget()
    assert not prepared.PREPARED.seen


def test_guards_of_products_leave_to_torch_what_is_no_node(launches: HostLaunches) -> None:
    """Calls that were kept where no derivative is recorded, then with one: of a vector, and into a tensor."""
    x, weight, bias = leaf(integers(16)), leaf(integers(16, 32)), leaf(integers(32))
    out, activated = torch.empty(16, 32, dtype=BF16), {"bias": bias, "activation": "gelu"}
    rows = leaf(integers(16, 16))
    with torch.no_grad():
        for _ in range(3):
            matmul(x, weight), matmul(rows, weight, out=out), matmul(rows, weight, **activated)
    assert len(prepared.PREPARED.seen) == 3
    made = len(launches.made)
    grads = torch.autograd.grad(matmul(x, weight).sum(), (x, weight))
    assert torch.equal(grads[0], weight.detach().sum(1)) and torch.equal(grads[1], x.detach()[:, None].expand(16, 32))
    with pytest.raises(TensorError, match="out"):
        matmul(rows, weight, out=out)
    c = matmul(rows, weight, **activated)
    assert type(c.grad_fn).__name__ == "GeluBackward0" and len(launches.made) > made
    again = [matmul(rows, weight, bias=bias) for _ in range(3)][-1]
    assert torch.equal(torch.autograd.grad(again.sum(), bias)[0], torch.full((32,), 16.0, dtype=BF16))


# ------------------------------------------------------------------------------------------- a weight's and its bias's


class Added:
    """Launches of a weight's gradient with its bias's: torch computes both, from the addresses that a kernel gets."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def compiled(self, plan: Any) -> Any:
        def entry(arguments: Any) -> None:
            self.made.append(plan)
            values = values_of(arguments)
            sizes = dict(zip(plan.parameters, values))
            m, n, k, kind = sizes["m"], sizes["n"], sizes["k"], plan.a.dtype.name
            a = memory(sizes["a"], kind, (m, k), (1, sizes["lda"])).double()
            b = memory(sizes["b"], kind, (k, n), (sizes["ldb"], 1)).double()
            memory(sizes["c"], kind, (m, n), (sizes["ldc"], 1)).copy_(a @ b)
            memory(values[14 + plan.words.index("row_sums")], plan.row_sums.kind, (m,), (1,)).copy_(a.sum(1))

        def block(arguments: Any) -> Any:
            values = [*arguments, 0, 0]
            return SimpleNamespace(values=values, pointer=values)

        return SimpleNamespace(launcher=SimpleNamespace(load=lambda index: None, block=block, entry=entry))


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Small tiles are taken for large ones."""
    found = Added()
    monkeypatch.setattr(bias_launch, "compile_apart", found.compiled)
    monkeypatch.setattr(bias_launch, "LARGE", Sm90Config((64, 8), consumers=1, stages=2, loader="warp"))
    monkeypatch.setattr(tensor_maps, "resident", lambda index, blocks: 2)
    return found


@pytest.mark.parametrize("kind", [BF16, F32])
@pytest.mark.parametrize("form", ["matrix", "sequence", "linear"])
def test_a_weight_and_its_bias_by_one_launch(form: str, kind: Any, added: Added, launches: HostLaunches) -> None:
    """The second backward pass is kept; dX has a launch of its own."""
    shape = (3, 16, 72) if form == "sequence" else (48, 72)
    for turn in range(3):
        x, weight, bias = leaf(integers(*shape)), leaf(integers(40, 72)), leaf(integers(40, kind=kind))
        c = api.linear(x, weight, bias) if form == "linear" else matmul(x, weight.mT, bias=bias)
        grad = integers(*c.shape)
        before = len(launches.made)
        c.backward(grad)
        rows = grad.reshape(-1, 40).double()
        assert torch.equal(weight.grad.double(), rows.mT @ x.detach().reshape(-1, 72).double())
        assert bias.grad.dtype == kind and torch.equal(bias.grad.double(), rows.sum(0))
        assert torch.equal(x.grad.double(), (grad.double() @ weight.detach().double()))
        assert len(added.made) == turn + 1 and len(launches.made) == before + 1
        assert weight.grad.stride() == weight.stride()


def test_other_gradients_of_a_bias_are_torchs_sum(added: Added, launches: HostLaunches) -> None:
    """A weight with contiguous rows has another dW, and a constant weight has no gradient."""
    x, bias = leaf(integers(48, 72)), leaf(integers(40))
    matmul(x, leaf(integers(72, 40)), bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((40,), 48.0).bfloat16()) and not added.made
    matmul(x, integers(40, 72).mT, bias=bias).sum().backward()
    assert not added.made


def test_tiles_below_the_measured_ones_are_not_taken(monkeypatch: pytest.MonkeyPatch, launches: HostLaunches) -> None:
    monkeypatch.setattr(bias_launch, "compile_apart", None)  # never asked
    x, weight, bias = leaf(integers(48, 72)), leaf(integers(40, 72)), leaf(integers(40))
    matmul(x, weight.mT, bias=bias).sum().backward()
    assert bias.grad.shape == (40,)


@pytest.mark.parametrize(
    "sizes, tile", [((4096, 4096, 2048), (128, 256)), ((14336, 4096, 4096), (128, 256)), ((1024, 1024, 4096), None)]
)
def test_the_configuration_of_both(sizes: tuple[int, int, int], tile: tuple[int, int] | None) -> None:
    out, inner, tokens = sizes
    grad, x = (torch.empty(tokens, size, dtype=BF16, device="meta") for size in (out, inner))
    made = bias_launch.DerivedProduct(grad.mT, x, True)
    plan = bias_launch.plan_of_both(made, "bf16")
    assert (None if plan is None else plan.tile[:2]) == tile
