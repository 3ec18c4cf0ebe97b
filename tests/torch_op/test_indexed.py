"""matmul and grouped_matmul with row indices: the CPU's reference, refusals, gradients, compilers, and the launches."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm import Sm90Config, grouped_matmul, matmul
from layoutgemm.errors import LayoutError, OperandError, PlanError, TensorError
from layoutgemm.kernels.indexed.added_rows import CHUNK, FEW
from layoutgemm.torch_op.composed import checks as composed_checks
from layoutgemm.torch_op.indexed import product
from layoutgemm.torch_op.indexed.added import added
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.emulated_launches import launches_are_emulated
from tests.torch_op.test_operator import BF16, F32, emulated, integers

SMALL = Sm90Config((64, 64), consumers=1, stages=3, loader="warpgroup")
OFFSETS = torch.tensor([0, 7, 7, 60, 90], dtype=torch.int32)
M, N, K, TOKENS, EXPERTS = 90, 48, 72, 33, 4


def problem(kind: Any = BF16) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a": integers(TOKENS, K, dtype=kind), "b": integers(N, K, dtype=kind).mT,
        "experts": integers(EXPERTS, N, K, dtype=kind).mT, "rows": torch.randint(0, TOKENS, (M,), dtype=torch.int32),
        "out_rows": torch.randperm(M), "weights": torch.exp2(torch.randint(-1, 2, (M,)).float()),
    }  # fmt: skip


def by_hand(x: dict[str, Any], groups: bool, scatter: bool, weighted: bool) -> Any:
    """The product in float32 by torch's own operators."""
    read = x["a"].float().index_select(0, x["rows"])
    if groups:
        parts = [read[f:e] @ b.float() for f, e, b in zip(OFFSETS.tolist(), OFFSETS.tolist()[1:], x["experts"])]
        value = torch.cat(parts)
    else:
        value = read @ x["b"].float()
    value = value * x["weights"][:, None] if weighted else value
    return torch.zeros_like(value).index_copy(0, x["out_rows"], value) if scatter else value


def ours(x: dict[str, Any], groups: bool, scatter: bool, weighted: bool, **more: Any) -> Any:
    vectors = {"rows": x["rows"], "out_rows": x["out_rows"] if scatter else None,
               "row_weights": x["weights"] if weighted else None}  # fmt: skip
    if groups:
        return grouped_matmul(x["a"], x["experts"], OFFSETS, **vectors, **more)
    return matmul(x["a"], x["b"], **vectors, **more)


WAYS = [(g, s, w) for g in (False, True) for s in (False, True) for w in (False, True)]


@pytest.mark.parametrize("way", WAYS)
def test_reference_is_exact(way: tuple[bool, bool, bool]) -> None:
    x = problem()
    assert torch.equal(ours(x, *way, out_dtype=F32), by_hand(x, *way))
    assert ours(x, *way).dtype == BF16


def test_an_output_keeps_rows_that_no_index_names() -> None:
    x = problem()
    x["out_rows"] = torch.arange(M) * 2
    out = torch.full((2 * M, N), 7.0)
    assert matmul(x["a"], x["b"], rows=x["rows"], out_rows=x["out_rows"], out=out, out_dtype=F32) is out
    assert torch.equal(out[::2], by_hand(x, False, False, False)) and bool((out[1::2] == 7).all())


def test_rows_of_c_alone_and_an_activation() -> None:
    x = problem()
    a = x["a"]
    got = matmul(a, x["b"], out_rows=torch.arange(TOKENS).flip(0), activation="relu", out_dtype=F32)
    assert torch.equal(got, (a.float() @ x["b"].float()).relu().flip(0))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_torchs_own_operators(way: tuple[bool, bool, bool]) -> None:
    x, y = problem(), problem()
    names = ["a", "experts" if way[0] else "b", *["weights"] * way[2]]
    for name in names:
        x[name].requires_grad_()
        y[name].requires_grad_()
    grad = integers(M, N, dtype=F32)
    ours(x, *way, out_dtype=F32).backward(grad)
    by_hand(y, *way).backward(grad)
    for name in names:
        want = y[name].grad.to(y[name].dtype)
        assert torch.allclose(x[name].grad.float(), want.float(), rtol=0.03, atol=0.5), name


def test_second_derivatives() -> None:
    x, y = problem(), problem()
    grads = []
    for z, run in ((x, ours), (y, by_hand)):
        z["a"].requires_grad_()
        z["b"].requires_grad_()
        more = {"out_dtype": F32} if run is ours else {}
        value = run(z, False, True, True, **more)
        (first,) = torch.autograd.grad((value * value).sum() / 64, z["a"], create_graph=True)
        (second,) = torch.autograd.grad(first.float().sum() / 64, z["b"])
        grads.append(second.float())
    assert torch.allclose(*grads, rtol=0.05, atol=0.02 * float(grads[1].abs().max()))


@pytest.mark.parametrize("way", [(False, True, True), (True, True, False)])
@pytest.mark.parametrize("records", [False, True])
def test_under_torch_compile(way: tuple[bool, bool, bool], records: bool) -> None:
    x = problem()
    if records:
        x["a"].requires_grad_()
    compiled = torch.compile(lambda x: ours(x, *way, out_dtype=F32) + 1, fullgraph=True, backend="aot_eager")
    got = compiled(x)
    assert torch.equal(got, by_hand(x, *way) + 1)
    if records:
        got.sum().backward()
        twin = problem()
        twin["a"].requires_grad_()
        by_hand(twin, *way).sum().backward()
        assert torch.allclose(x["a"].grad.float(), twin["a"].grad.float(), rtol=0.03, atol=0.5)


def test_under_torch_compile_into_an_output() -> None:
    x, out = problem(), torch.zeros(M, N)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x: dict[str, Any], out: Any) -> Any:
        return matmul(x["a"], x["b"], rows=x["rows"], out_rows=x["out_rows"], out=out, out_dtype=F32)

    run(x, out)
    assert torch.equal(out, by_hand(x, False, True, False))


def outside(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any, Any]:
    """A problem with indices outside, as a GPU's may be, and masks of those inside."""
    monkeypatch.setattr(product, "_check_values", lambda *_: None)
    x = problem()
    x["rows"][::5], x["rows"][3::7], x["out_rows"][1::4], x["out_rows"][2::9] = -1, TOKENS, M, -3
    return x, (x["rows"] >= 0) & (x["rows"] < TOKENS), (x["out_rows"] >= 0) & (x["out_rows"] < M)


def clean(x: dict[str, Any], reads: Any, writes: Any) -> Any:
    """`by_hand` with the rows that are outside left out."""
    read = torch.where(reads[:, None], x["a"].float().index_select(0, x["rows"].clamp(0, TOKENS - 1).long()), 0.0)
    value = (read @ x["b"].float() * x["weights"][:, None])[writes]
    return torch.zeros(M, N).index_copy(0, x["out_rows"][writes], value)


@pytest.mark.parametrize("compiles", [False, True])
def test_indices_outside_read_zeros_and_write_nothing(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever torch moves rows in the kernel's place, too: its own functions would end a GPU's context."""
    x, reads, writes = outside(monkeypatch)
    run = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiles else ours
    want = clean(x, reads, writes)
    assert torch.equal(run(x, False, True, True, out_dtype=F32), want)
    out = torch.full((M, N), 7.0)
    run(x, False, True, True, out=out, out_dtype=F32)
    named = torch.zeros(M, dtype=torch.bool)
    named[x["out_rows"][writes]] = True
    assert torch.equal(out, torch.where(named[:, None], want, 7.0))
    x["a"], x["b"] = x["a"][:, :0], x["b"][:0]  # sums of nothing are torch's
    assert bool((ours(x, False, True, True) == 0).all())


def test_gradients_of_rows_outside_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    x, reads, writes = outside(monkeypatch)
    y = {name: value.clone() for name, value in x.items()}
    for z in (x, y):
        for name in ("a", "b", "weights"):
            z[name].requires_grad_()
    grad = integers(M, N, dtype=F32)
    ours(x, False, True, True, out_dtype=F32).backward(grad)
    clean(y, reads, writes).backward(grad)
    for name in ("a", "b", "weights"):
        assert torch.allclose(x[name].grad.float(), y[name].grad.float(), rtol=0.03, atol=0.5), name
    assert bool((x["weights"].grad[~(reads & writes)] == 0).all())


def test_results_of_8_bits_are_scattered_too() -> None:
    x = problem(torch.float8_e4m3fn)
    got = ours(x, False, True, False, out_dtype=torch.float8_e4m3fn)
    assert torch.equal(got.float(), by_hand(x, False, True, False).to(torch.float8_e4m3fn).float())


def test_fake_tensors_have_the_shape_and_the_refusals() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b, rows = torch.empty(9, K).bfloat16(), torch.empty(K, N).bfloat16(), torch.empty(M, dtype=torch.int32)
        assert matmul(a, b, rows=rows).shape == (M, N)
        with pytest.raises(LayoutError, match="row_weights is"):
            matmul(a, b, rows=rows, row_weights=torch.empty(3))


@pytest.mark.parametrize("name", ["rows", "out_rows", "add_rows"])
def test_a_fake_mode_reads_the_rows_of_real_tensors(name: str) -> None:
    """NumPy's view of a tensor has other memory under such a mode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.ones(4, K).bfloat16(), torch.ones(K, N).bfloat16()
    experts, offsets = torch.ones(2, K, N).bfloat16(), torch.tensor([0, 3, 4])
    with FakeTensorMode(allow_non_fake_inputs=True):
        for product_of in (
            lambda **rows: matmul(a, b, **rows),
            lambda **rows: grouped_matmul(a, experts, offsets, **rows),
        ):
            out = {"out": torch.empty(4, N).bfloat16()} if name == "add_rows" else {}
            assert product_of(**{name: _real([3, 1, 0, 2])}, **out).shape == (4, N)
            with pytest.raises(OperandError, match=rf"{name}\[1\] = 4: "):
                product_of(**{name: _real([3, 4, 0, 2])}, **out)


def _real(numbers: list[int]) -> Any:
    """A tensor with elements, whatever mode is on."""
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.tensor(numbers)


def test_operator_passes_torchs_checks() -> None:
    x = problem()
    arguments = (x["a"], x["b"], x["rows"], x["out_rows"], x["weights"], None, None, F32)
    torch.library.opcheck(torch.ops.layoutgemm.indexed_matmul, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": torch.tensor([0, 33])}, r"rows\[1\] = 33: a has 33 rows, 0 to 32"),
        ({"rows": torch.tensor([-1])}, r"rows\[0\] = -1: a has 33 rows"),
        ({"rows": torch.tensor([0.0])}, "rows is torch.float32 of shape"),
        (
            {"rows": torch.zeros(3, 1, dtype=torch.int32)},
            r"rows is torch.int32 of shape \[3, 1\]: int32 or int64 of \[M\]",
        ),
        ({"rows": torch.zeros(2, dtype=torch.int32), "out_rows": torch.zeros(3, dtype=torch.int32)}, "out_rows is"),
        ({"out_rows": torch.zeros(33, dtype=torch.int32)}, r"out_rows\[0\] and out_rows\[1\] are both 0"),
        ({"out_rows": torch.arange(33) + 1}, r"out_rows\[32\] = 33: the result has 33 rows"),
        ({"row_weights": torch.ones(33)}, "row_weights: the rows of a product with rows=, out_rows="),
        ({"rows": torch.tensor([0]), "row_weights": torch.ones(2)}, r"row_weights is torch.float32 of shape \[2\]"),
        ({"rows": torch.tensor([0]), "row_weights": torch.ones(1).half()}, "row_weights is torch.float16"),
        ({"rows": torch.tensor([0]), "bias": torch.zeros(N - 1)}, "bias of shape"),
        ({"rows": torch.tensor([0]), "order": "symmetric"}, "no kernel has gathered rows and a symmetric order"),
        ({"rows": torch.tensor([0]), "a": (integers(33, K),) * 2}, "a is 2 tensors and b 1"),
        ({"rows": torch.tensor([0]), "combine": "silu"}, "b is a Tensor: combine= takes a tuple"),
        ({"rows": torch.tensor([0]), "activation": "swiglu", "b": integers(47, K).mT}, "b has 47 columns"),
        ({"rows": torch.tensor([0]), "copy_rows": 1}, "copy_rows: True or False, of a product with rows="),
        ({"copy_rows": True}, "copy_rows: True or False, of a product with rows="),
        ({"rows": torch.tensor([0]), "out": torch.zeros(2, N).bfloat16()}, "out has shape"),
        ({"rows": torch.tensor([0]), "out": torch.zeros(1, N)}, "to have dtype"),
        ({"rows": torch.tensor([0], device="meta")}, "rows is on meta"),
        ({"rows": [0]}, "rows"),
    ],
)
def test_calls_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    x = {**problem(), **changes}
    operands = x["a"], x["b"]
    with pytest.raises((OperandError, PlanError, TensorError), match=message):
        matmul(*operands, **{name: value for name, value in changes.items() if name not in "ab"})


def test_an_output_over_an_operand_is_refused() -> None:
    square = integers(64, 64)
    rows = torch.arange(64)
    with pytest.raises(TensorError, match="out"):
        matmul(square, integers(64, 64), rows=rows, out_rows=rows.flip(0), out=square)
    held = torch.zeros(64 * 64 * 2, dtype=torch.uint8)
    words, out = held[: 64 * 4].view(torch.int32), held.view(BF16).view(64, 64)
    with pytest.raises(TensorError, match="out"):
        matmul(square, integers(64, 64), out_rows=words, out=out)


def test_derivatives_that_there_are_not_are_refused() -> None:
    x = problem()
    eight = x["a"].to(torch.float8_e4m3fn).requires_grad_(), x["b"].to(torch.float8_e4m3fn)
    with pytest.raises(TensorError, match="no gradient"):
        matmul(*eight, rows=x["rows"], activation="relu")
    x["a"].requires_grad_()
    with pytest.raises(TensorError, match="out"):
        matmul(x["a"], x["b"], rows=x["rows"], out=torch.zeros(M, N).bfloat16())
    with pytest.raises(OperandError, match="float32"):
        matmul(x["a"].detach().float(), x["b"].float(), rows=x["rows"])
    with pytest.raises(OperandError, match="counts: row indices of masked groups are of a"):
        grouped_matmul(x["a"].detach(), x["experts"], OFFSETS, counts=OFFSETS[:4], rows=x["rows"])


@pytest.mark.parametrize("sizes", [(0, N, K), (5, 0, K), (5, N, 0)])
def test_sizes_of_zero(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = torch.ones(9, k).bfloat16(), torch.ones(k, n).bfloat16()
    got = matmul(a, b, rows=torch.zeros(m, dtype=torch.int64), out_rows=torch.arange(m))
    assert got.shape == (m, n) and not got.any()


# ------------------------------------------------------------- gates, batches, masked groups, and several matrices


def gated(x: dict[str, Any], b: Any, rows: Any) -> Any:
    sums = x["a"].double()[rows.long()] @ b.double()
    return torch.nn.functional.silu(sums[:, : b.shape[1] // 2]) * sums[:, b.shape[1] // 2 :]


def masked_problem() -> tuple[Any, Any, Any, Any]:
    """Tokens, weights of three experts, rows of each and how many count; rows beyond are no rows."""
    x = problem()
    rows = torch.randint(0, TOKENS, (3, 70), dtype=torch.int32)
    counts = torch.tensor([70, 0, 13], dtype=torch.int32)
    rows[2, 13:] = -7
    return x["a"], x["experts"][:3], rows, counts


@pytest.mark.parametrize("scatter", [False, True])
def test_a_gate_of_chosen_rows(scatter: bool) -> None:
    x = problem()
    want = gated(x, x["b"], x["rows"]) * x["weights"].double()[:, None]
    more: dict[str, Any] = {"out_rows": x["out_rows"]} if scatter else {}
    got = matmul(x["a"], x["b"], rows=x["rows"], row_weights=x["weights"], activation="swiglu", out_dtype=F32, **more)
    want = torch.zeros_like(want).index_copy(0, x["out_rows"], want) if scatter else want
    assert got.shape == (M, N // 2) and torch.allclose(got.double(), want, rtol=1e-6, atol=1e-6)


def test_rows_of_a_batch_and_of_masked_groups() -> None:
    a, b, rows, counts = masked_problem()
    want = torch.stack([a.float()[i.clamp(0).long()] @ w.float() for i, w in zip(rows, b)])
    got = matmul(a, b, rows=rows.clamp(0), out_dtype=F32)
    assert torch.equal(got, want)
    assert torch.equal(matmul(a.expand(3, -1, -1), b, rows=rows.clamp(0), out_dtype=F32), want)
    out = torch.full((3, 70, N), 7.0)
    assert grouped_matmul(a, b, counts=counts, rows=rows, out=out, out_dtype=F32) is out
    assert torch.equal(out[0], want[0]) and torch.equal(out[2, :13], want[2, :13])
    assert bool((out[1] == 7).all()) and bool((out[2, 13:] == 7).all())


def test_several_matrices_of_chosen_rows() -> None:
    x = problem()
    read, b = x["a"].double()[x["rows"].long()], x["b"].double()
    got = matmul(
        x["a"], (x["b"], -x["b"]), combine=lambda p, q, ops, s: ops.maximum(p, 0.0) + s * q, given={"s": 3},
        rows=x["rows"], out_dtype=F32,
    )  # fmt: skip
    assert torch.equal(got.double(), (read @ b).clamp(min=0) - 3 * (read @ b))


def test_what_rows_of_a_batch_and_of_several_matrices_do_not_take() -> None:
    a, b, rows, counts = masked_problem()
    inside = rows.clamp(0)
    for changes, message in (
        ({"rows": inside[0]}, r"rows is torch.int32 of shape \[70\]: int32 or int64 of \[3, M\]"),
        ({"rows": inside, "row_weights": torch.ones(3, 70)}, "row_weights: the rows of a batch are gathered alone"),
        ({"rows": inside, "activation": "swiglu"}, "a gate of a batch's products takes counts="),
        ({"rows": rows}, r"rows\[13\] = -7: a has 33 rows"),
    ):
        with pytest.raises(OperandError, match=message):
            matmul(a, b, **changes)
    with pytest.raises(OperandError, match=r"counts\[0\] = 71: a has 0 to 70 rows"):
        grouped_matmul(a, b, counts=counts + 1, rows=rows)
    with pytest.raises(OperandError, match="rows of a batch: no gradients"):
        matmul(a.clone().requires_grad_(), b, rows=inside)
    with pytest.raises(OperandError, match="rows"):
        matmul(a, (b[0], b[1]), combine="silu", rows=[0])


def test_explanations_say_the_way_and_its_workspace() -> None:
    a, w = torch.empty(64, 512).bfloat16(), torch.empty(8192, 512).bfloat16()
    rows = torch.zeros(4096, dtype=torch.int64)
    told = layoutgemm.explain_matmul(a, w.T, rows=rows)
    assert "rows copied from 64 of A" in told.kernel and told.workspace == 4096 * 512 * 2 and "estimates" in told.why
    told = layoutgemm.explain_matmul(a, w.T, rows=rows, copy_rows=False)
    assert "rows gathered from 64 of A" in told.kernel and told.workspace == 0 and told.copies == ()
    told = layoutgemm.explain_matmul(a, w.T, rows=rows, out_rows=rows + torch.arange(4096), activation="swiglu")
    assert (
        told.kernel.endswith("then torch scatters its rows")
        and "a gated product that gathers was not measured" in told.why
    )
    told = layoutgemm.explain_matmul(a, w.T.contiguous(), rows=rows, activation="swiglu")
    assert told.kernel.endswith("then torch gates it") and told.workspace > 4096 * 512 * 2
    with pytest.raises(OperandError, match="offs: a product with row indices takes none"):
        layoutgemm.explain_matmul(a, w.T, rows=rows, offs=OFFSETS)


# ------------------------------------------------------------------------------------- the launches that a GPU gets


COPYING = Sm90Config((64, 64), consumers=1, stages=3)


@pytest.mark.dsl
@pytest.mark.parametrize("way", [(True, True, True), pytest.param((False, False, False), marks=pytest.mark.slow)])
def test_launches_that_copy_rows_twice(way: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept, with other values and memory of its own; A's rows lie at any distance."""
    x = problem()
    with emulated(monkeypatch) as calls:
        assert torch.equal(ours(x, *way, config=COPYING), by_hand(x, *way).bfloat16())
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        y = problem()
        y["rows"] = y["rows"].flip(0).contiguous()
        assert torch.equal(ours(y, *way, config=COPYING), by_hand(y, *way).bfloat16())
        y["rows"][::7] = -1  # reads zeros
        got = ours(y, *way, config=COPYING)
        assert len(calls) == 3
        y["rows"] = y["rows"].clamp(0)
        want = by_hand(y, *way).bfloat16()
        at = y["out_rows"][::7] if way[1] else torch.arange(M)[::7]
        want[at] = 0
        assert torch.equal(got, want)


@pytest.mark.dsl
@pytest.mark.slow
def test_launches_of_gates_masked_groups_and_several_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    x, (a, b, rows, counts) = problem(), masked_problem()
    unaligned = torch.zeros(TOKENS, K + 3, dtype=BF16)[:, 1 : K + 1].copy_(x["a"])
    with emulated(monkeypatch):
        got = matmul(unaligned, x["b"], rows=x["rows"], activation="swiglu", out_dtype=F32, config=COPYING)
        assert torch.allclose(got.double(), gated(x, x["b"], x["rows"]), rtol=1e-4, atol=1e-3)
        got = matmul(x["a"], x["b"].contiguous(), rows=x["rows"], activation="swiglu", out_dtype=F32, config=COPYING)
        assert torch.allclose(got.double(), gated(x, x["b"], x["rows"]), rtol=1e-4, atol=1e-3)
        want = torch.stack([a.float()[i.clamp(0).long()] @ w.float() for i, w in zip(rows, b)])
        assert torch.equal(matmul(a, b, rows=rows.clamp(0), out_dtype=F32, config=COPYING), want)
        assert torch.equal(matmul(a, b[:1], rows=rows[:1], out_dtype=F32, config=COPYING), want[:1])
        out = torch.full((3, 70, N), 7.0)
        for _ in range(2):
            grouped_matmul(a, b, counts=counts, rows=rows, out=out, out_dtype=F32, config=COPYING)
        assert torch.equal(out[0], want[0]) and torch.equal(out[2, :13], want[2, :13])
        assert bool((out[1] == 7).all()) and bool((out[2, 13:] == 7).all())


@pytest.mark.dsl
@pytest.mark.parametrize("way", [(True, True, True), pytest.param((False, False, False), marks=pytest.mark.slow)])
def test_launches_twice(way: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way into a new result and into the caller's; then kept, with other values."""
    x = problem()
    out = torch.full((M, N), 7.0, dtype=BF16)
    with emulated(monkeypatch) as calls:
        assert torch.equal(ours(x, *way, config=SMALL), by_hand(x, *way).bfloat16())
        assert ours(x, *way, config=SMALL, out=out) is out and torch.equal(out, by_hand(x, *way).bfloat16())
        assert len(calls) == 2
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        y = problem()
        y["rows"] = y["rows"].flip(0).contiguous()
        y["out_rows"] = y["out_rows"].flip(0).contiguous()
        ours(y, *way, config=SMALL, out=out)
        assert len(calls) == 3 and torch.equal(out, by_hand(y, *way).bfloat16())
        y["out_rows"][::3] = M  # names no row of the result, which is new
        got = ours(y, *way, config=SMALL)
        assert len(calls) == 4
        if way[1]:
            left = torch.ones(M, dtype=torch.bool)
            left[y["out_rows"][y["out_rows"] < M]] = False
            assert bool(left.any()) and bool((got[left] == 0).all()) and bool((got[~left] != 0).any())


@pytest.mark.dsl
def test_indices_with_strides_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x = problem()
    x["rows"] = torch.stack([x["rows"], x["rows"]], 1)[:, 0]
    with emulated(monkeypatch):
        for _ in range(2):
            assert torch.equal(ours(x, True, True, True, config=SMALL), by_hand(x, True, True, True).bfloat16())


@pytest.mark.parametrize("combine", [None, "silu"])
def test_autocast_converts_float32_operands(combine: str | None) -> None:
    x = problem()
    a, b, rows = x["a"], x["b"], x["rows"]
    several = b if combine is None else (b, b)
    want = matmul(a, several, rows=rows, combine=combine)
    with torch.autocast("cpu", dtype=BF16):
        wide = b.float() if combine is None else (b.float(), b.half())
        assert torch.equal(matmul(a.float(), wide, rows=rows, combine=combine), want)
    with pytest.raises(OperandError, match=r"a is torch.float32: a product with row indices is of bfloat16"):
        matmul(a.float(), b.float(), rows=rows)


ADDED_TO = torch.arange(M) * 5 % 8


def added_by_hand(x: dict[str, Any], way: tuple[bool, bool, bool]) -> Any:
    """Rows of the product rounded, added in float32, and rounded once."""
    rows = by_hand(x, *way).to(BF16).float()
    return torch.zeros(8, N).index_add(0, ADDED_TO, rows).to(BF16)


def test_rows_of_groups_are_added() -> None:
    x, way = problem(), (True, False, True)
    given = {"rows": x["rows"], "row_weights": x["weights"], "add_rows": ADDED_TO}
    out = torch.ones(8, N, dtype=F32)
    assert grouped_matmul(x["a"], x["experts"], OFFSETS, out=out, out_dtype=F32, **given) is out
    want = torch.ones(8, N).index_add(0, ADDED_TO, by_hand(x, *way))
    torch.testing.assert_close(out, want)
    leaves = [x["a"].requires_grad_(), x["experts"].detach().requires_grad_()]
    grouped_matmul(leaves[0], leaves[1], OFFSETS, **given)[:8].sum().backward()
    found = [leaf.grad.clone() for leaf in leaves]
    x["experts"] = leaves[1]
    leaves[0].grad = leaves[1].grad = None
    by_hand(x, *way).sum().backward()
    for one, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(one.float(), leaf.grad.float(), rtol=2**-6, atol=2**-4)
    with torch.no_grad():
        call = torch.compile(lambda a, b: grouped_matmul(a, b, OFFSETS, **given), fullgraph=True, backend="eager")
        assert torch.equal(call(*leaves), grouped_matmul(*leaves, OFFSETS, **given))
    for more, text in (
        ({"out_rows": x["out_rows"]}, "out_rows and add_rows"),
        ({"bias": ADDED_TO}, "bias is torch.int64"),
    ):
        with pytest.raises(OperandError, match=text):
            grouped_matmul(x["a"], x["experts"], OFFSETS, **given, **more)


def test_rows_are_added_in_any_order_by_name() -> None:
    x = problem()
    given = {"row_weights": x["weights"], "add_rows": ADDED_TO}
    for options in ({}, {"out": torch.ones(8, N, dtype=BF16)}, {"bias": torch.ones(N)}):
        got, want = (
            matmul(x["a"][x["rows"]], x["b"], ordered=ordered, **given, **{n: t.clone() for n, t in options.items()})
            for ordered in (False, True)
        )
        assert torch.equal(got, want)
    lower = {"order": "lower", "rows": x["rows"], **given}
    assert torch.equal(*[matmul(x["a"], x["b"], ordered=ordered, **lower) for ordered in (False, True)])
    assert "; then its rows are added to" in layoutgemm.explain_matmul(x["a"], x["b"], **lower).kernel
    groups = {**given, "rows": x["rows"], "out_dtype": F32}
    any_order, want = (grouped_matmul(x["a"], x["experts"], OFFSETS, ordered=o, **groups) for o in (False, True))
    assert torch.equal(any_order, want)
    parts = {"bias": torch.ones(N), "offs": OFFSETS[1:], "activation": "relu"}
    both = [grouped_matmul(x["a"], x["experts"], ordered=o, **parts, **groups) for o in (True, False)]
    wide = grouped_matmul(x["a"], x["experts"], rows=x["rows"], out_dtype=F32, **parts) * x["weights"][:, None]
    assert all(torch.equal(y, torch.zeros_like(y).index_add(0, ADDED_TO, wide)) for y in both)
    refused = [
        ({"ordered": 0}, "ordered = 0: True, or False"), ({}, "add_rows= names them, and it is not given"),
        ({"add_rows": ADDED_TO[:3]}, "a row for each row of the product"),
        ({"add_rows": ADDED_TO.float()}, "add_rows is torch.float32"),
        ({"add_rows": ADDED_TO + M}, r"add_rows\[0\] = \d+: the result has"),
        ({"add_rows": ADDED_TO, "out": torch.zeros(8, N)}, "out is torch.float32"),
        ({"add_rows": ADDED_TO, "out_rows": ADDED_TO}, "out_rows and add_rows"),
    ]  # fmt: skip
    for more, text in refused:
        with pytest.raises(OperandError, match=text):
            matmul(x["a"][x["rows"]], x["b"], **{"ordered": False, **more})


@pytest.mark.dsl
def test_rows_are_added_by_chunks_of_the_sorted_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row takes most, and indices outside write nothing. Other indices at the same address are sorted anew."""
    needs.module("cutlass")
    rows, b, generator = 8, integers(8, 16).mT, torch.Generator().manual_seed(0)
    launches_are_emulated(monkeypatch)
    monkeypatch.setattr(composed_checks, "check_inside", lambda *values: None)  # as on a GPU
    for m, together, times in ((FEW + 4, CHUNK, 2), (16, 16, 1)):  # up to 8 rows of an index are added in turn
        a, to = torch.randn(m, 16, generator=generator), torch.arange(m).remainder(rows + 3) - 1
        a[:, 1:], a[:, 0] = 0, a[:, 0] * 2.0 ** torch.arange(m).remainder(24)  # products are exact, their sums are not
        a = a.bfloat16()
        to[: m // 2], to[-4:] = 5, torch.tensor([2**31 - 1, 2**31 - 2, -(2**31), 2**40])
        for _ in range(times):
            out, want = torch.zeros(rows, 8), torch.zeros(rows, 8)
            order = to.where(to < 2**31 - 1, -1).clamp(min=-1).argsort(stable=True)  # as the kernel lists them
            for of_chunk in order.split(together):
                of_chunk = of_chunk[(to[of_chunk] >= 0) & (to[of_chunk] < rows)]
                want += torch.zeros(rows, 8).index_add(0, to[of_chunk], a.float()[of_chunk] @ b.float())
            matmul(a, b, add_rows=to, out=out, out_dtype=F32, config=SMALL)
            assert torch.equal(out, want)
            to.copy_(to.flip(0))


@pytest.mark.parametrize("ordered", [True, False])
def test_added_rows_have_all_derivatives(ordered: bool) -> None:
    to = torch.tensor([1, 3, 1, 9, -1])  # the last two are outside
    x, rows = torch.arange(8.0).reshape(4, 2).requires_grad_(), torch.ones(5, 2).requires_grad_()

    def call(x: Any, rows: Any) -> Any:
        return added(x, to, rows, ordered).square()

    want = torch.zeros(4, 2).index_add(0, to[:3], torch.ones(3, 2)) + x
    assert torch.equal(call(x, rows), want.square())
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for function in (call, compiled):
        of_x, of_rows = torch.autograd.grad(function(x, rows).sum(), (x, rows))
        assert torch.equal(of_x, 2 * want) and torch.equal(of_rows[:3], (2 * want)[to[:3]]) and not of_rows[3:].any()
    (of_rows,) = torch.autograd.grad(call(x, rows).sum(), rows, create_graph=True)
    (twice,) = torch.autograd.grad(of_rows.sum(), rows)
    assert twice[:, 0].tolist() == [4.0, 2.0, 4.0, 0.0, 0.0]  # rows 0 and 2 are of one index
    _, tangent = torch.func.jvp(lambda rows: call(x.detach(), rows), (rows.detach(),), (rows.detach(),))
    assert torch.equal(tangent, (2 * want * (want - x)).detach())
    both = torch.stack([rows, 2 * rows]).detach()
    assert torch.equal(torch.func.vmap(call, (None, 0))(x.detach(), both)[1], call(x, 2 * rows).detach())
    assert added(x[:0], to, rows).shape == (0, 2)


@pytest.mark.dsl
def test_one_launch_adds_rows_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x = problem()
    given = {"rows": x["rows"], "row_weights": x["weights"], "add_rows": ADDED_TO}
    out = torch.zeros(8, N, dtype=BF16)
    with emulated(monkeypatch) as calls:
        grouped_matmul(x["a"], x["experts"], OFFSETS, out=out, config=SMALL, **given)
    assert len(calls) == 1 and torch.equal(out, added_by_hand(x, (True, False, True)))


def test_vmap_maps_index_vectors_alone() -> None:
    """A vector's values are checked where they can be read; rows are placed in a result for each vector."""
    a, b, weights = torch.randn(6, 16).half(), torch.randn(16, 8).half(), torch.randn(2, 16, 8).half()
    places, ends = torch.stack([torch.arange(6).roll(i) for i in range(3)]), torch.tensor([2, 6])
    calls: list[Any] = [
        lambda x: matmul(a, b, rows=x),
        lambda x: matmul(a, b, out_rows=x),
        lambda x: grouped_matmul(a, weights, offs=ends, out_rows=x),
    ]
    for call in calls:
        assert torch.equal(torch.vmap(call)(places), torch.stack([call(x) for x in places]))
    with pytest.raises(OperandError, match="out is one tensor for all that"):
        torch.vmap(lambda x: matmul(a, b, add_rows=x, out=torch.zeros(6, 8).half()))(places)
