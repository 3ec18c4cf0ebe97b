"""Gradients behind epilogues of groups and scales, against float64 autograd by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from layoutgemm import explain_matmul, grouped_matmul, scaled_matmul
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Aux,
    Bias,
    ColumnReduce,
    Epilogue,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    VectorScale,
)
from layoutgemm.torch_op.own_epilogue.formula import NAMED, OF_COLUMNS, columns_of_groups
from tests.torch_op.test_operator import emulated
from tests.torch_op.test_scaled_kernels import SMALL, scaled_case

M, N, K, GROUPS = 40, 24, 16, 3
SIZES = (7, 0, 30)  # of 40 rows, 3 are in no group
ENDS = torch.tensor(SIZES).cumsum(0)
READ = (VectorScale("m", "f32", "row"), Bias("n", "f32"))
LAST = (Activation("gelu"), Residual("f32", beta=None))
STEPS = (
    Epilogue(*READ, *LAST, RowReduce("log_sum_exp", "all"), ColumnReduce("sum_of_squares", "squares"),
             ColumnReduce("softmax", "soft")),
    Epilogue(*READ, Aux("f32"), *LAST, RowReduce("sum", "parts", each=8)),
)  # fmt: skip


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


class Case:
    """A grouped product: its operands, and the rows of each group's part of them and of the result.

    form  "offs", "offsets", "counts", "K" or "rows", which are of "offsets"
    """

    def __init__(self, form: str):
        self.form, lead = form, (GROUPS,) if form in ("counts", "K") else ()
        bf16 = torch.bfloat16
        self.a = random(*((GROUPS,) if form == "counts" else ()), M, K).to(bf16)
        self.b = random(*(() if form == "K" else (GROUPS,)), K, N, seed=1).to(bf16)
        ends = ENDS if form == "offs" else torch.tensor([0, 7, 7, M])
        self.groups: dict[str, torch.Tensor] = {"offs" if form == "offs" else "offsets": ends}
        if form == "counts":
            self.groups = {"counts": torch.tensor(SIZES)}
        if form == "K":
            self.groups = {"offs": torch.tensor([5, 5, K])}
        if form == "rows":
            self.groups["rows"] = torch.randint(M, (M,), generator=torch.Generator().manual_seed(3))
        self.read = {"row": random(*lead, M), "bias": random(GROUPS, N), "d": random(*lead, M, N)}
        vectors = lead or (GROUPS,)
        self.written = {
            "aux": torch.full((*lead, M, N), 7.0), "all": torch.full((*lead, M), 7.0),
            "parts": torch.full((*lead, M, N // 8), 7.0), "squares": torch.zeros(*vectors, N),
            "soft_max": torch.zeros(*vectors, N), "soft_log_sum_exp": torch.zeros(*vectors, N),
        }  # fmt: skip

    def parts(self) -> list[tuple[Any, Any, Any]]:
        """Each group's part of a, of the result, and of what lies along its rows."""
        whole = slice(None)
        if self.form == "K":
            return [((whole, slice(s, e)), (g,), (g,)) for g, (s, e) in enumerate(((0, 5), (5, 5), (5, K)))]
        if self.form == "counts":
            return [((g, slice(0, n)), (g, slice(0, n)), (g, slice(0, n))) for g, n in enumerate(SIZES)]
        ends = [0, *ENDS.tolist()] if self.form == "offs" else self.groups["offsets"].tolist()
        rows = [(slice(s, e),) for s, e in pairwise(ends)]
        return [(each, each, each) for each in rows]

    def by_hand(self, a: torch.Tensor, b: torch.Tensor, of: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """C and what is written, of float64 operands."""
        found = {name: x.double() for name, x in self.written.items()}
        found["c"] = torch.zeros_like(found["aux"])
        if self.form == "rows":
            a = a[self.groups["rows"]]
        for g, (of_a, at, rows) in enumerate(self.parts()):
            x = a[of_a] @ (b[of_a[1]] if self.form == "K" else b[g])
            x = x * of["row"][rows].unsqueeze(-1) + of["bias"][g]
            y = torch.nn.functional.gelu(x) + of["d"][at]
            values = {"aux": x, "c": y, "all": y.logsumexp(-1), "parts": y.unflatten(-1, (-1, 8)).sum(-1)}
            for name, value in values.items():
                found[name] = found[name].index_put(tuple(self.index(at, value.shape)), value)
            if y.shape[0]:
                columns = {"squares": y.square().sum(0), "soft_max": y.amax(0), "soft_log_sum_exp": y.logsumexp(0)}
                for name, value in columns.items():
                    found[name] = found[name].index_put((torch.tensor(g),), value)
        return found

    def index(self, at: Any, shape: torch.Size) -> list[torch.Tensor]:
        """The indices of a part's rows."""
        *front, rows = (*at, slice(0, M)) if self.form == "K" else at
        return [*[torch.tensor(x) for x in front], torch.arange(M)[rows]]


def loss(found: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number that every finite result is part of, each by weights of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for i, (_, x) in enumerate(sorted(found.items())):
        x = x.double()
        weights = torch.arange(x.numel()).reshape(x.shape) % (7 + i) - 3.0
        total = total + (torch.where(x.isfinite(), x, 0.0) * weights).sum()
    return total


def check(case: Case, steps: Epilogue, twice: bool = False, **options: Any) -> None:
    a, b = (x.clone().requires_grad_() for x in (case.a, case.b))
    read = {name: x.clone().requires_grad_() for name, x in case.read.items()}
    written = {name: x.clone() for name, x in case.written.items() if name in steps.writes}
    c = grouped_matmul(
        a, b, **case.groups, epilogue=steps, given={**read, **written}, out_dtype=torch.float32, **options
    )
    exact = [x.detach().double().requires_grad_() for x in (a, b, *read.values())]
    want = case.by_hand(exact[0], exact[1], dict(zip(read, exact[2:], strict=True)))
    counted = c  # rows beyond the counts are unspecified
    if case.form == "counts":
        counted = torch.where(torch.arange(M)[:, None] < case.groups["counts"].view(-1, 1, 1), c, 0)
    got = loss({"c": counted, **written})
    want = {name: x for name, x in want.items() if name in ("c", *written)}
    assert torch.allclose(got, loss(want), rtol=1e-4)
    tensors = [a, b, *read.values()]
    found = torch.autograd.grad(got, tensors, create_graph=twice)
    expected = torch.autograd.grad(loss(want), exact, create_graph=twice)
    for name, x, y in zip(("a", "b", *read), found, expected, strict=True):
        assert x.dtype == (torch.bfloat16 if name in "ab" else torch.float32)
        assert torch.linalg.norm(x.double() - y) <= 2e-2 * torch.linalg.norm(y) > 0, name
    if twice:
        again = torch.autograd.grad(found[4].double().square().sum(), tensors[:2])
        wanted = torch.autograd.grad(expected[4].square().sum(), exact[:2], allow_unused=True)
        for x, y in zip(again, wanted, strict=True):
            y = torch.zeros_like(x).double() if y is None else y
            assert torch.linalg.norm(x.double() - y) <= 2e-2 * torch.linalg.norm(y)


@pytest.mark.parametrize("form", ["offs", "offsets", "counts", "K", "rows"])
def test_gradients_of_groups(form: str) -> None:
    for steps in STEPS:
        check(Case(form), steps)


def test_second_derivatives_and_compiled_calls() -> None:
    check(Case("offs"), STEPS[0], twice=True)
    case, steps = Case("offsets"), Epilogue(*READ, *LAST, ColumnReduce("sum", "total"))
    a, b = (x.clone().requires_grad_() for x in (case.a, case.b))

    def call(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        c = grouped_matmul(
            a, b, **case.groups, epilogue=steps, given={**case.read, "total": total}, out_dtype=torch.float32
        )
        return c.square().sum() + (total * total.detach()).sum()

    results = []
    for each in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        total = torch.zeros(GROUPS, N)
        results.append([total, *torch.autograd.grad(each(a, b, total), (a, b))])
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


def test_gradients_behind_a_gate() -> None:
    case, found = Case("offs"), []
    b, read = random(GROUPS, K, 2 * N).bfloat16(), random(GROUPS, 2 * N)
    steps = Epilogue(VectorScale("n", "f32", "column"), Activation("relu"), ColumnReduce("sum", "total"), sums=1)
    weights = torch.arange(N) * torch.arange(1, GROUPS + 1)[:, None]
    for exact in (False, True):
        own = [
            x.to(torch.float64 if exact else x.dtype).requires_grad_()
            for x in (case.a.clone(), b.clone(), read.clone())
        ]
        if exact:
            parts = [(own[0][e - n : e] @ own[1][g]) * own[2][g] for g, (n, e) in enumerate(zip(SIZES, ENDS))]
            gated = [torch.relu(torch.nn.functional.silu(x[:, :N]) * x[:, N:]) for x in parts]
            total, c = torch.stack([x.sum(0) for x in gated]), torch.cat(gated)
        else:
            total = torch.zeros(GROUPS, N)
            c = grouped_matmul(
                own[0], own[1], **case.groups, activation="swiglu", epilogue=steps,
                given={"column": own[2], "total": total}, out_dtype=torch.float32,
            )  # fmt: skip
        found.append(torch.autograd.grad((total * weights).sum() + c.square().sum(), own))
    for x, y in zip(*found, strict=True):
        assert torch.linalg.norm(x.double() - y) <= 2e-2 * torch.linalg.norm(y) > 0


def test_column_results_of_groups_are_torchs() -> None:
    """Forward mode and torch.func take them, where a recorded call has the kernel's."""
    x, group = random(M, N), torch.repeat_interleave(torch.arange(GROUPS + 1), torch.tensor((*SIZES, M - sum(SIZES))))
    x[0] = -torch.inf
    with pytest.raises(OperandError, match="top2 of columns of groups: sum"):
        columns_of_groups("top2", x, group, GROUPS)
    for name in OF_COLUMNS:
        form, found = NAMED[name][0], columns_of_groups(name, x, group, GROUPS)
        for g in (0, 2):
            rows = (group == g).nonzero().flatten()
            for y, want in zip(found, form(x[rows].mT), strict=True):
                want = rows[want] if y.dtype == torch.int32 else want
                assert torch.allclose(y[g].double(), want.double(), rtol=1e-5), (name, g)
    case = Case("offs")
    read, bias = (VectorScale("m", "f32", "row"), Bias("n", "f32")), random(N)

    def total(a: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(GROUPS, N)
        given = {"row": case.read["row"], "bias": bias, "all": found}
        grouped_matmul(
            a, case.b, **case.groups, epilogue=Epilogue(*read, ColumnReduce("log_sum_exp", "all")), given=given
        )
        return found[::2].sum()

    own = case.a.clone().requires_grad_()
    (want,) = torch.autograd.grad(value := total(own), own)
    gradient, again = torch.func.grad_and_value(total)(case.a)
    assert torch.allclose(again, value, rtol=1e-5) and torch.equal(gradient, want)


@pytest.mark.dsl
def test_the_forward_pass_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    case, a = Case("offs"), Case("offs").a.requires_grad_()
    steps = Epilogue(Bias("n", "f32"), Aux("f32"), ColumnReduce("argmax", "best"), stores_c=False)
    best = {"best_value": torch.zeros(GROUPS, N), "best_index": torch.zeros(GROUPS, N).int()}
    given = {"bias": case.read["bias"], "aux": case.written["aux"], **best}
    with emulated(monkeypatch) as calls:
        assert grouped_matmul(a, case.b, **case.groups, epilogue=steps, given=given, config=SMALL).shape == (0,)
        assert len(calls) == 1 and best["best_value"].requires_grad and not best["best_index"].requires_grad
        best["best_value"][:1].sum().backward()
    (largest, *_), used = best["best_index"], a.grad.abs().sum(1) > 0
    assert set(used.nonzero().flatten().tolist()) == set(largest.tolist())


@pytest.mark.parametrize("name", ["rows", "1x128, 1x128"])
def test_gradients_of_what_a_scaled_epilogue_reads(name: str) -> None:
    given, sums = scaled_case(name)
    m, n = sums.shape
    steps = Epilogue(Bias("n", "f32"), Activation("silu"), Residual("bf16", beta=None), RowReduce("log_sum_exp", "all"))
    read = [random(n), random(m, n).bfloat16()]
    own, exact = [x.clone().requires_grad_() for x in read], [x.double().requires_grad_() for x in read]
    rows = torch.zeros(m)
    of = {**given, "a": given["a"], "b": given["b"]}

    def call(bias: torch.Tensor, d: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        c = scaled_matmul(**of, epilogue=steps, given={"bias": bias, "d": d, "all": rows}, out_dtype=torch.float32)
        return c.square().sum() * 1e-4 + rows.sum()

    y = torch.nn.functional.silu(sums * 1.0 + exact[0]) + exact[1]
    expected = torch.autograd.grad(y.square().sum() * 1e-4 + y.logsumexp(1).sum(), exact)
    found = torch.autograd.grad(call(*own, rows), own)
    for x, want in zip(found, expected, strict=True):
        assert torch.linalg.norm(x.double() - want) <= 1e-2 * torch.linalg.norm(want)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    again = torch.autograd.grad(compiled(*own, torch.zeros(m)), own)
    derived = torch.func.grad(lambda *x: call(*x, torch.zeros(m)), argnums=(0, 1))(*read)
    for x, y, z in zip(found, again, derived, strict=True):
        assert torch.equal(x, y) and torch.allclose(x, z, rtol=0, atol=1e-6)  # torch.func sums a bias in another order


def test_the_explanation_says_what_the_backward_pass_computes() -> None:
    case, (given, sums) = Case("offs"), scaled_case("rows")
    steps, d = Epilogue(Residual("f32", beta=None)), torch.zeros(M, N)
    a = case.a.clone().requires_grad_()
    again = f"float32 sums again, {4 * M * N} bytes, by one product for each; torch derives the steps"
    assert (
        explain_matmul(a, case.b, **case.groups, epilogue=steps, given={"d": d}).backward == f"{again}; then products"
    )
    told = explain_matmul(case.a, case.b, **case.groups, epilogue=steps, given={"d": d.clone().requires_grad_()})
    assert told.backward == again
    assert not explain_matmul(case.a, case.b, **case.groups, epilogue=steps, given={"d": d}).backward
    told = explain_matmul(**given, epilogue=steps, given={"d": torch.zeros(sums.shape, requires_grad=True)})
    assert told.backward == again.replace(str(4 * M * N), str(4 * sums.numel()))


def test_refusals_name_the_operand() -> None:
    given, _ = scaled_case("rows")
    case, own = Case("offs"), Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a[0] * b[0], [1.0])
    bias = random(given["b"].shape[1]).requires_grad_()
    of_groups = {**case.groups, "b": case.b, "a": case.a.clone().requires_grad_()}
    scale = given["scale_a"].clone().requires_grad_()
    e4m3 = torch.float8_e4m3fn
    for text, call, operands, steps, more in (
        ("scale_a requires grad", scaled_matmul, {**given, "scale_a": scale}, Epilogue(Bias()), {"bias": bias}),
        ("values of 8 bits have no gradient", scaled_matmul, {**given, "out_dtype": e4m3},
         Epilogue(Bias(), Quantize()), {"bias": bias, "scales": torch.zeros(70, 1)}),
        ("own: a Reduction of one's own, or the k largest, of columns of groups", grouped_matmul, of_groups,
         Epilogue(ColumnReduce(own, "own")), {"own": torch.zeros(GROUPS, N)}),
        ("out", grouped_matmul, {**of_groups, "out": torch.zeros(M, N).bfloat16()}, Epilogue(Activation("relu")), {}),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=text):
            call(**operands, epilogue=steps, given=more)
