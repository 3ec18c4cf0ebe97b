"""grouped_matmul(prologue=), and rows by index with a prologue: values, gradients, compilers, refusals, launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutgemm import explain_matmul, grouped_matmul, matmul
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels import Prologue
from layoutgemm.torch_op.prologue.grouped import checked_groups, plan_of_groups
from layoutgemm.torch_op.scaled_grouped.scaled import BiasActivation
from tests.torch_op.host_launches import bare_launches
from tests.torch_op.test_prologue import NORM, RELU, compiled, near, normalised, slopes

OPERATOR = torch.ops.layoutgemm.prologue_grouped_matmul
OFFSETS, ENDS, COUNTS = torch.tensor([0, 7, 7, 20]), torch.tensor([7, 7, 17]), torch.tensor([3, 0, 10])
NAMED = Prologue.of(lambda x, i, k, ops, offsets: x, offsets="m")
CAUSAL = Prologue.of(lambda x, i, k, ops: ops.where(k <= i, x, 0.0))
ROWS, K, N, GROUPS = 20, 16, 8, 3
CHOSEN = torch.tensor([3, 3, 0, 19, 5])


def drawn(device: str = "cpu", rows: int = ROWS, n: int = N, k: int = K, groups: int = GROUPS) -> list[torch.Tensor]:
    """a, b, factors of rows, factors of columns and a bias by group."""
    torch.manual_seed(0)
    a, b = torch.randn(rows, k, device=device).bfloat16(), torch.randn(groups, k, n, device=device).bfloat16()
    w = torch.rand(groups, k, device=device).bfloat16()
    return [a, b, torch.rand(rows, device=device) + 0.5, w, torch.randn(groups, n, device=device)]


def product(
    a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, **more: Any
) -> torch.Tensor:
    given, more = {"rstd": rstd, "w": w}, more or {"offsets": OFFSETS}
    return grouped_matmul(a, b, prologue=NORM, given=given, bias=bias, activation="relu", **more)


def by_torch(
    a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Each group in float64."""
    parts = []
    for e, (first, end) in enumerate(pairwise(offsets.tolist())):
        computed = normalised(a[first:end], rstd[first:end], w if w.ndim == 1 else w[e])
        parts.append(torch.relu(computed.double() @ b[e].double() + bias[e].double()))
    return torch.cat(parts)


def test_groups_of_rows_by_offsets_and_ends() -> None:
    a, b, rstd, w, bias = drawn()
    want = by_torch(a, b, rstd, w, bias, OFFSETS)
    assert torch.equal(product(a, b, rstd, w, bias), want.bfloat16())
    one = by_torch(a, b, rstd, w[0], bias, OFFSETS)
    assert torch.equal(product(a, b, rstd, w[0], bias), one.bfloat16())
    got = product(a, b, rstd, w, bias, offs=ENDS, out_dtype=torch.float32)
    assert not got[17:].any() and (got[:17] - want[:17]).abs().max() <= 1e-5 * want.abs().max()
    out = torch.full((ROWS, N), 7.0).bfloat16()
    assert product(a, b, rstd, w, bias, offs=ENDS, out=out) is out
    assert torch.equal(out[:17], want.bfloat16()[:17]) and bool((out[17:] == 7).all())  # of no group


def test_masked_groups() -> None:
    _, b, _, w, bias = drawn()
    a, rstd = torch.randn(GROUPS, 10, K).bfloat16(), torch.rand(GROUPS, 10)
    got = product(a, b, rstd, w, bias, counts=COUNTS)
    want = torch.relu(normalised(a, rstd, w).double() @ b.double() + bias[:, None].double()).bfloat16()
    assert all(torch.equal(got[e, :count], want[e, :count]) for e, count in enumerate(COUNTS.tolist()))
    moved = grouped_matmul(a, b, counts=COUNTS, prologue=CAUSAL)  # rows are counted in each matrix
    want = (torch.tril(a.float()).bfloat16().double() @ b.double()).bfloat16()
    assert all(torch.equal(moved[e, :count], want[e, :count]) for e, count in enumerate(COUNTS.tolist()))


def test_gradients_and_a_compiled_graph() -> None:
    operands = drawn()

    def plain(a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Any:
        group = torch.searchsorted(OFFSETS[1:], torch.arange(ROWS), right=True)
        x = (a.float() * rstd[:, None] * w.float()[group]).bfloat16()
        parts = [(x[first:end] @ b[e]).float() + bias[e] for e, (first, end) in enumerate(pairwise(OFFSETS.tolist()))]
        return torch.relu(torch.cat(parts))

    made = compiled(product)
    assert torch.equal(made(*operands), product(*operands))
    eager = slopes(product, *operands)
    assert near(eager, slopes(plain, *operands)) and near(slopes(made, *operands), eager)

    def loss(a: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        return product(a, operands[1], rstd, *operands[3:]).float().square().sum()

    assert near([*torch.func.grad(loss, argnums=(0, 1))(operands[0], operands[2])], [eager[0], eager[2]])


WEIGHTED = Prologue.of(lambda x, i, k, ops, s, w: x * s * w, s="k", w="m")


@pytest.mark.parametrize("each", [True, False])
def test_groups_along_k(each: bool) -> None:
    """The gradient of each expert's weights, of rows with weights of their own."""
    torch.manual_seed(0)
    x, dy, s = torch.randn(ROWS, K).bfloat16(), torch.randn(ROWS, N).bfloat16(), torch.rand(ROWS)
    w = torch.rand(GROUPS, K) + 0.5 if each else torch.rand(K) + 0.5

    def gradient(x: torch.Tensor, dy: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return grouped_matmul(x.T, dy, offsets=OFFSETS, prologue=WEIGHTED, given={"s": s, "w": w})

    def plain(x: torch.Tensor, dy: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        lines = w[:, None, :].expand(GROUPS, ROWS, K) if each else w.expand(GROUPS, ROWS, K)
        computed = (x.float() * s[:, None] * lines).bfloat16().mT
        parts = [
            y[:, at:end].double() @ dy[at:end].double() for y, (at, end) in zip(computed, pairwise(OFFSETS.tolist()))
        ]
        return torch.stack(parts).bfloat16()

    got = gradient(x, dy, s, w)
    assert torch.equal(got, plain(x, dy, s, w)) and not got[1].any()
    assert torch.equal(compiled(gradient)(x, dy, s, w), got)
    assert near(slopes(gradient, x, dy, s, w), slopes(plain, x, dy, s, w))
    told = explain_matmul(x.T, dy, offsets=OFFSETS, prologue=WEIGHTED, given={"s": s, "w": w})
    assert told.copies == () and "K in 3 group(s)" in told.kernel


def test_operators_shapes_and_transforms() -> None:
    a, b, rstd, w, bias = drawn()
    arguments = (a, b, OFFSETS, [rstd, w], NORM.json, "offsets", bias, "relu", torch.float32, "")
    assert set(torch.library.opcheck(OPERATOR.default, arguments).values()) == {"SUCCESS"}
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (a, b, rstd, w, bias)]
        assert product(*fake, offsets=mode.from_tensor(OFFSETS)).shape == (ROWS, N)
    found = torch.vmap(product, in_dims=(0, None, 0, None, None))(
        torch.stack([a, -a]), b, torch.stack([rstd, 2 * rstd]), w, bias
    )
    assert torch.equal(found[1], product(-a, b, 2 * rstd, w, bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(product(a.float(), b.float(), rstd, w, bias), product(a, b, rstd, w, bias))
    assert product(a[:0], b, rstd[:0], w, bias, offsets=torch.zeros(4).long()).shape == (0, N)
    empty = product(a[:, :0], b[:, :0], rstd, w[:, :0], bias)
    assert torch.equal(empty[12], torch.relu(bias[2]).bfloat16())


# ---------------------------------------------------------------------------------------------------- rows by index


def test_rows_by_index_are_copied_first() -> None:
    a, b, rstd, w, bias = drawn()
    ends = torch.tensor([0, 2, 2, 5])

    def chosen(a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return product(a, b, rstd, w, bias, offsets=ends, rows=CHOSEN)

    want = product(a[CHOSEN], b, rstd[CHOSEN], w, bias, offsets=ends)
    assert torch.equal(chosen(a, b, rstd, w), want)
    assert torch.equal(compiled(chosen)(a, b, rstd, w), want)

    def dense(a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return matmul(a, b, prologue=NORM, given={"rstd": rstd, "w": w}, rows=CHOSEN, copy_rows=True)

    def gathered(a: torch.Tensor, b: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return matmul(a[CHOSEN], b, prologue=NORM, given={"rstd": rstd[CHOSEN], "w": w})

    operands = a, b[0], rstd, w[0]
    assert torch.equal(dense(*operands), gathered(*operands))
    assert near(slopes(dense, *operands), slopes(gathered, *operands))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prologue": CAUSAL, "given": {}}, "the function reads i, the number of a row"),
        ({"copy_rows": False}, "rows of an a with a prologue are copied first"),
        ({"rows": CHOSEN.float()}, "rows is torch.float32 of 1 dimensions"),
        ({"rows": torch.tensor([20])}, "rows[0] = 20"),
        ({"rows": CHOSEN[:3], "given": {"rstd": torch.ones(3)}}, "rstd has shape [3]: [20], one for each row of a"),
        ({"out_rows": CHOSEN}, "out_rows[3] = 19: the result has 5 rows"),
        ({"given": None}, "the prologue reads rstd, w: rstd is missing"),
    ],
)  # fmt: skip
def test_refusals_of_rows(more: dict[str, Any], message: str) -> None:
    a, b, rstd, w, _ = drawn()
    given = {"rstd": rstd, "w": w[0], **(more.get("given") or {})}
    given = more["given"] if more.get("given") in ({}, None) and "given" in more else given
    options: dict[str, Any] = {"prologue": NORM, "rows": CHOSEN, **more, "given": given}
    with pytest.raises(LayoutError) as found:
        matmul(a, b[0], **options)
    assert message in str(found.value)


def test_a_gate_follows_the_function() -> None:
    a, b, rstd, w, _ = drawn()
    call: dict[str, Any] = {"offsets": OFFSETS, "activation": "geglu", "out_dtype": torch.float32}
    asked = {"prologue": NORM, "given": {"rstd": rstd, "w": w[0]}}
    x = (a.float() * rstd[:, None] * w[0].float()).bfloat16()
    assert torch.equal(grouped_matmul(a, b, **asked, **call), grouped_matmul(x, b, **call))
    assert explain_matmul(a, b, **asked, **call).kernel.startswith("torch computes a's function, then ")


def test_scales_follow_the_function() -> None:
    """Torch computes it in 8 bits: of rows in order, and of chosen rows with their own scales."""
    eight, half = torch.float8_e4m3fn, Prologue.of(lambda x, i, k, ops, s: x * s, s="k")
    x, w = torch.randint(-3, 4, (ROWS, 128)).float().to(eight), torch.ones(3, 16, 128).to(eight).mT
    factors, scales = {"s": torch.full((3, 128), 0.5)}, (torch.arange(1.0, ROWS + 1), torch.ones(3, 1, 16))
    call = {"offs": ENDS, "scale_b": scales[1], "out_dtype": torch.float32}
    for rows in (None, torch.arange(ROWS).flip(0)):
        of_a = scales[0][:, None]
        found = grouped_matmul(x, w, scale_a=of_a, prologue=half, given=factors, rows=rows, **call)
        chosen = x if rows is None else x[rows]
        want = grouped_matmul((chosen.float() / 2).to(eight), w, scale_a=of_a if rows is None else of_a[rows], **call)
        assert torch.equal(found, want)
    told = explain_matmul(x, w, scale_a=of_a, prologue=half, given=factors, **call)
    assert told.kernel.startswith("torch computes a's function, then Sm90Plan")


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scale_b": torch.ones(3, 1, N)}, "scale_b and prologue: a product with a prologue takes none"),
        ({"offs": ENDS}, "offsets and offs: groups are said by one of"),
        ({"given": {"rstd": torch.ones(ROWS)}}, "w is missing"),
        ({"given": {"rstd": torch.ones(ROWS), "w": torch.ones(2, K).bfloat16()}}, "of shape [16] or [3, 16], one for"),
        ({"activation": "swigul"}, "do you mean 'swiglu'?"),
        ({"prologue": lambda x: x}, "a Prologue, made by Prologue.of"),
        ({"prologue": NAMED}, "is named offsets, as the groups are"),
        ({"b": torch.ones(K, N).bfloat16(), "offsets": torch.tensor([0, K])}, "of shape [16], one for"),
        ({"copy_rows": True}, "copy_rows and prologue"),
        ({"config": 3}, "config"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    a, b, rstd, w, _ = drawn()
    options: dict[str, Any] = {"offsets": OFFSETS, "prologue": NORM, "given": {"rstd": rstd, "w": w}, "b": b, **more}
    if options["prologue"] is NAMED:
        options["given"] = {"offsets": rstd}
    matrix = options.pop("b")
    with pytest.raises(LayoutError) as found:
        grouped_matmul(a, matrix, **options)
    assert message in str(found.value)
    with pytest.raises(RuntimeError) as traced:
        compiled(lambda a, b: grouped_matmul(a, b, **options))(a, matrix)
    assert message in str(traced.value)


def test_types_without_a_prologue() -> None:
    a, b, *_ = drawn()
    eight = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    want = grouped_matmul(torch.relu(a).to(torch.float8_e4m3fn), eight[1], OFFSETS)
    assert torch.equal(grouped_matmul(*eight, OFFSETS, prologue=RELU), want)
    with pytest.raises(OperandError, match=r"a is torch\.float32: a grouped product is of"):
        grouped_matmul(a.float(), b.float(), OFFSETS, prologue=RELU)


# ------------------------------------------------------------------------------------------------------- without a GPU


def test_the_explanation_says_the_cost() -> None:
    a, b = torch.empty(4096, 4096).bfloat16(), torch.empty(8, 4096, 4096).bfloat16()
    told = explain_matmul(a, b, prologue=RELU, offsets=torch.arange(0, 4097, 512), activation="relu")
    assert told.why.startswith("one launch for all groups; a's function is computed 16 times for each element, once")
    assert told.why.endswith("512 rows a group on average: (128, 256) tiles take least time (an estimate)")
    assert told.workspace == 0 and "rows in 8 group(s)" in told.kernel
    masked = explain_matmul(a.view(8, 512, 4096), b, prologue=RELU, counts=torch.ones(8).long(), expected_rows=128)
    assert masked.why.endswith("128 rows a group taken to be: (128, 256) tiles take least time (an estimate)")
    chosen = explain_matmul(a, b[0], prologue=RELU, rows=CHOSEN)
    assert chosen.copies == ("a: torch copies 5 chosen rows, 40960 bytes",)


@pytest.mark.parametrize("said", ["offsets", "offs", "counts"])
def test_a_launch_is_kept(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, rstd, w, _ = drawn(rows=64, n=64, k=64)
    bias, groups = torch.ones(64), {"offsets": torch.tensor([0, 10, 10, 64]), "offs": torch.tensor([10, 10, 64])}
    groups["counts"] = torch.tensor([1, 0, 64])
    if said == "counts":
        a, rstd = torch.randn(3, 64, 64).bfloat16(), torch.rand(3, 64)
    of = checked_groups(a, b, groups[said], said, NORM, {"rstd": rstd, "w": w}, BiasActivation(bias), None, None)
    plan, _ = plan_of_groups(of, None, True)
    assert plan.check()
    name = {"offs": "ends"}.get(said, said)
    want = {"a": a, "b": b, "rstd": rstd, "w": w, "bias": bias, name: groups[said]}
    numbers = {"w_batch": 64, "rstd_batch": 64 if said == "counts" else 0, "bias_batch": 0, "m": 64, "n": 64, "k": 64}
    with bare_launches(monkeypatch) as noted:
        for _ in range(2):
            noted.arguments.clear()
            noted.allocated = 0
            grouped_matmul(a, b, **{said: groups[said]}, prologue=NORM, given={"rstd": rstd, "w": w}, bias=bias)
            (made,) = noted.arguments
            values = dict(zip(plan.parameters, made, strict=False))
            assert {name: values[name] for name in want} == {name: x.data_ptr() for name, x in want.items()}
            assert {name: values[name] for name in numbers} == numbers
        assert noted.allocated == 1  # the second call is a kept one


def test_a_launch_of_groups_along_k_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, s, w = torch.randn(80, 64).bfloat16(), torch.randn(80, 32).bfloat16(), torch.rand(80), torch.rand(2, 64)
    ends, given = torch.tensor([10, 80]), {"s": s, "w": w}
    of = checked_groups(x.T, dy, ends, "offs", WEIGHTED, given, BiasActivation(), None, None)
    plan, _ = plan_of_groups(of, None, True)
    assert plan.check()
    want = {"a": x, "b": dy, "s": s, "w": w, "ends": ends}
    numbers = {"s_batch": 0, "w_batch": 64, "m": 64, "n": 32, "k": 80}
    with bare_launches(monkeypatch) as noted:
        for _ in range(2):
            noted.arguments.clear()
            noted.allocated = 0
            grouped_matmul(x.T, dy, offs=ends, prologue=WEIGHTED, given=given)
            (made,) = noted.arguments
            values = dict(zip(plan.parameters, made, strict=False))
            assert {name: values[name] for name in want} == {name: y.data_ptr() for name, y in want.items()}
            assert {name: values[name] for name in numbers} == numbers
        assert noted.allocated == 1  # the second call is a kept one


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_groups_along_k_on_a_gpu() -> None:
    x, dy = torch.randn(300, 520, device="cuda").bfloat16(), torch.randn(300, 136, device="cuda").bfloat16()
    s, w = torch.rand(300, device="cuda"), torch.rand(4, 520, device="cuda")
    offsets = [0, 100, 100, 230, 300]
    want = torch.stack(
        [
            (x.float() * s[:, None] * w[e]).bfloat16()[at:end].double().mT @ dy[at:end].double()
            for e, (at, end) in enumerate(pairwise(offsets))
        ]
    )
    groups, given = torch.tensor(offsets, device="cuda"), {"s": s, "w": w}
    for _ in range(2):  # the second call is a kept one
        got = grouped_matmul(x.T, dy, offsets=groups, prologue=WEIGHTED, given=given, out_dtype=torch.float32)
        assert bool(((got - want).abs() <= 1e-3 * want.abs() + 1e-3).all())


@pytest.mark.gpu
@pytest.mark.parametrize("said", ["offsets", "offs", "counts"])
def test_on_a_gpu(said: str) -> None:
    a, b, rstd, w, bias = drawn("cuda", 300, 136, 520, 4)
    offsets = torch.tensor([0, 100, 100, 230, 300], device="cuda")
    groups = {"offsets": offsets, "offs": offsets[1:], "counts": torch.tensor([1, 0, 75, 60], device="cuda")}[said]
    if said == "counts":
        a, rstd = a.view(4, 75, 520), rstd.view(4, 75)
        want = torch.relu(normalised(a, rstd, w).double() @ b.double() + bias[:, None].double())
        inside = torch.arange(75, device="cuda")[None, :] < groups[:, None]
    else:
        want, inside = by_torch(a, b, rstd, w, bias, offsets), torch.ones(300, dtype=torch.bool, device="cuda")
    for _ in range(2):  # the second call is a kept one
        got = product(a, b, rstd, w, bias, **{said: groups}, out_dtype=torch.float32)
        assert bool(((got - want).abs() <= 1e-3 * want.abs() + 1e-3)[inside].all())
