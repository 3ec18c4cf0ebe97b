"""grouped_matmul in all its forms on the CPU: values, gradients, modes and compilers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import grouped_matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.torch_op.scaled_grouped import api, kept, kept_gradients
from tests.torch_op.host_launches import bare_launches

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
OP = torch.ops.layoutgemm
SIZES = (3, 0, 4, 1)
ENDS = torch.tensor([3, 3, 7, 8], dtype=torch.int32)
OFFSETS = torch.tensor([0, 3, 3, 7, 8], dtype=torch.int32)
SHAPES = {
    "rows": ((8, 5), (4, 5, 6)),
    "columns": ((4, 5, 6), (6, 8)),
    "K": ((5, 8), (8, 6)),
    "batch": ((4, 5, 6), (4, 6, 3)),
}


def normal(*shape: int, dtype: Any = BF16, grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def operands(form: str, grad: bool = False, dtype: Any = BF16) -> tuple[Any, Any]:
    a, b = (normal(*shape, dtype=dtype, grad=grad) for shape in SHAPES[form])
    return a, b


def definition(a: Any, b: Any, ends: list[int]) -> Any:
    """From the definition, by torch's products: of any type, with derivatives."""
    groups = [slice(first, end) for first, end in pairwise([0, *ends])]
    if a.ndim == b.ndim == 3:
        return a @ b
    if a.ndim == 3:
        return torch.cat([a[e] @ b[:, g] for e, g in enumerate(groups)], 1)
    if b.ndim == 3:
        return torch.cat([a[g] @ b[e] for e, g in enumerate(groups)])
    return torch.stack([a[:, g] @ b[g] for g in groups])


def groups_of(form: str, said: str) -> dict[str, Any]:
    return {} if form == "batch" else {said: OFFSETS if said == "offsets" else ENDS}


@pytest.mark.parametrize("said", ["offsets", "offs"])
@pytest.mark.parametrize("form", SHAPES)
def test_the_definition(form: str, said: str) -> None:
    a, b = operands(form)
    want = definition(a.double(), b.double(), ENDS.tolist())
    for groups in (groups_of(form, said), {key: x.long() for key, x in groups_of(form, said).items()}):
        got = grouped_matmul(a, b, **groups, out_dtype=F32)
        assert got.dtype == F32 and torch.equal(got, want.float())
        assert torch.equal(grouped_matmul(a, b, **groups), want.to(BF16))
        out = torch.empty(want.shape, dtype=BF16)
        assert grouped_matmul(a, b, **groups, out=out) is out and torch.equal(out, want.to(BF16))
        wide = torch.full((*want.shape[:-1], want.shape[-1] + 3), 7.0, dtype=BF16)
        grouped_matmul(a, b, **groups, out=wide[..., 1:-2])
        assert torch.equal(wide[..., 1:-2], out) and (wide[..., 0] == 7).all() and (wide[..., -2:] == 7).all()


def test_forms_are_those_of_torch() -> None:
    """torch's own operator on the CPU, for the forms that it has."""
    for form, shapes in {
        "rows": ((8, 16), (4, 16, 24)), "columns": ((4, 16, 24), (24, 8)), "K": ((16, 8), (8, 24)),
        "batch": ((4, 8, 16), (4, 16, 24)),
    }.items():  # fmt: skip
        a, b = (normal(*shape) for shape in shapes)
        kwargs = {} if form == "batch" else {"offs": ENDS}
        try:
            theirs = torch._grouped_mm(a, b, **kwargs)
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            pytest.skip(f"needs torch._grouped_mm on the CPU, pip install -U torch: {str(error).splitlines()[0]}")
        assert torch.allclose(grouped_matmul(a, b, **kwargs).float(), theirs.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_what_is_in_no_group_is_left(form: str) -> None:
    a, b = operands(form)
    ends = torch.tensor([2, 2, 5, 6])
    for out in (None, torch.full(grouped_matmul(a, b, offs=ends).shape, 7.0, dtype=BF16)):
        got = grouped_matmul(a, b, offs=ends, out=out)
        rows = got if form == "rows" else got.mT
        assert (rows[6:] == (0 if out is None else 7)).all()
        whole = grouped_matmul(a, b, offs=torch.tensor([2, 2, 5, 8]))
        assert torch.equal(rows[:6], (whole if form == "rows" else whole.mT)[:6])


def test_masked_groups() -> None:
    a, b, counts = normal(3, 4, 5), normal(3, 5, 6), torch.tensor([4, 0, 2], dtype=torch.int32)
    for out in (None, torch.full((3, 4, 6), 7.0, dtype=BF16)):
        got = grouped_matmul(a, b, counts=counts, out=out)
        for e, count in enumerate(counts.tolist()):
            assert torch.equal(got[e, :count], (a[e, :count].double() @ b[e].double()).to(BF16))
            assert (got[e, count:] == (0 if out is None else 7)).all()
    dirty = a.clone()
    dirty[1:, 2:] = float("nan")  # rows that do not count are not looked at
    assert torch.equal(grouped_matmul(dirty, b, counts=counts), grouped_matmul(a, b, counts=counts))


def test_sizes_of_zero() -> None:
    for a, b, groups, shape in (
        ((0, 5), (3, 5, 6), {"offsets": [0, 0, 0, 0]}, (0, 6)),
        ((4, 0), (2, 0, 6), {"offsets": [0, 1, 4]}, (4, 6)),
        ((4, 5), (0, 5, 6), {"offs": []}, (4, 6)),
        ((4, 0), (0, 6), {"offs": [0, 0]}, (2, 4, 6)),
        ((4, 3), (3, 6), {"offsets": [0, 3]}, (1, 4, 6)),
        ((4, 0), (0, 6), {"offs": []}, (0, 4, 6)),
        ((2, 0, 5), (2, 5, 6), {"counts": [0, 0]}, (2, 0, 6)),
        ((2, 4, 5), (5, 0), {"offs": [0, 0]}, (4, 0)),
    ):
        given = {key: torch.tensor(x, dtype=torch.int32) for key, x in groups.items()}
        got = grouped_matmul(normal(*a), normal(*b), **given)
        assert tuple(got.shape) == shape, (a, b)
        if 0 in a or 0 in b:
            assert not got.any()
    out = torch.full((4, 6), 7.0, dtype=BF16)
    grouped_matmul(normal(4, 0), normal(2, 0, 6), offs=torch.tensor([1, 3]), out=out)
    assert (out[:3] == 0).all() and (out[3:] == 7).all()


ACTS = {None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}


@pytest.mark.parametrize("each", [False, True], ids=["one bias", "a bias of each group"])
@pytest.mark.parametrize("activation", ACTS)
def test_bias_and_activation(activation: Any, each: bool) -> None:
    """Bias and activation of rows, batches and masked rows; rows behind the last end stay."""
    which = torch.tensor([0, 0, 0, 2, 2, 2, 2, 3])
    for form, given in (("rows", {"offs": ENDS}), ("rows", {"offsets": OFFSETS}), ("batch", {})):
        a, b = operands(form)
        bias = normal(*[4] * each, b.shape[-1], dtype=F32)
        wide = definition(a.double(), b.double(), ENDS.tolist())
        beside = bias.double() if not each else bias.double()[which] if form == "rows" else bias.double()[:, None]
        want = ACTS[activation](wide + beside)
        for kind in (F32, BF16):
            got = grouped_matmul(a, b, **given, bias=bias, activation=activation, out_dtype=kind)
            assert torch.allclose(got.double(), want, rtol=2 * torch.finfo(kind).eps, atol=1e-6)
        none = grouped_matmul(a[..., :0], b[..., :0, :], **given, bias=bias, activation=activation, out_dtype=F32)
        assert torch.allclose(none.double(), ACTS[activation](0 * wide + beside), atol=1e-6)
    a, b = operands("rows")
    ends = torch.tensor([2, 2, 5, 6])
    bias = normal(*[4] * each, 6, dtype=F32)
    for out in (None, torch.full((8, 6), 7.0, dtype=BF16)):
        got = grouped_matmul(a, b, offs=ends, bias=bias, activation=activation, out=out)
        assert (got[6:] == (0 if out is None else 7)).all() and got[:6].abs().max() > 0
    a, b, counts = normal(4, 5, 6), operands("batch")[1], torch.tensor([5, 0, 2, 1])
    bias = normal(*[4] * each, 3, dtype=F32)
    got = grouped_matmul(a, b, counts=counts, bias=bias, activation=activation)
    whole = grouped_matmul(a, b, bias=bias, activation=activation)
    for e, count in enumerate(counts.tolist()):
        assert torch.equal(got[e, :count], whole[e, :count]) and not got[e, count:].any()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("form", ["rows", "batch", "masked"])
def test_gradients_of_bias_and_activation(form: str, each: bool) -> None:
    counts = torch.tensor([5, 0, 2, 1])
    a, b = operands("rows", True) if form == "rows" else (normal(4, 5, 6, grad=True), normal(4, 6, 3, grad=True))
    bias = normal(*[4] * each, b.shape[-1], dtype=F32, grad=True)
    given = {"rows": {"offsets": OFFSETS}, "batch": {}, "masked": {"counts": counts}}[form]
    x, y, z = (t.detach().double().requires_grad_() for t in (a, b, bias))
    which = torch.tensor([0, 0, 0, 2, 2, 2, 2, 3])
    wide = definition(x, y, ENDS.tolist())
    want = torch.nn.functional.silu(wide + (z if not each else z[which] if form == "rows" else z[:, None]))
    if form == "masked":
        want = want * (torch.arange(5) < counts[:, None])[..., None]
    want.square().sum().backward()

    def loss(a: Any, b: Any, bias: Any) -> Any:
        return grouped_matmul(a, b, **given, bias=bias, activation="silu", out_dtype=F32).square().sum()

    torch._dynamo.reset()
    found = [
        torch.autograd.grad(loss(a, b, bias), (a, b, bias)),
        torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(a, b, bias), (a, b, bias)),
        torch.func.grad(loss, (0, 1, 2))(a.detach(), b.detach(), bias.detach()),
    ]
    for grads in found:
        for mine, right in zip(grads, (x.grad, y.grad, z.grad), strict=True):
            assert torch.allclose(mine.double(), right, rtol=2e-2, atol=2e-2) and mine.shape == right.shape
    alone = torch.autograd.grad(loss(a.detach(), b.detach(), bias), bias)[0]
    assert torch.allclose(alone.double(), z.grad, rtol=2e-2, atol=2e-2)


# ------------------------------------------------------------------------------------------------------------ refusals

X, Y = normal(8, 5), normal(4, 5, 6)
REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({}, OperandError, "offsets is missing: a and b have 2 and 3 dimensions"),
    ({"offsets": OFFSETS, "offs": ENDS}, OperandError, "offsets and offs: groups are said by one of"),
    ({"offs": ENDS, "counts": ENDS}, OperandError, "offs and counts: groups are said by one of"),
    ({"counts": ENDS}, OperandError, "counts: a and b have 2 and 3 dimensions"),
    ({"offs": OFFSETS}, OperandError, r"offs is torch.int32 of shape \[5\]: int32 or int64 of \[4\], where each group"),
    ({"offsets": ENDS}, OperandError, r"offsets is torch.int32 of shape \[4\]: int32 or int64 of \[5\]"),
    ({"offs": ENDS[None]}, OperandError, r"offs is torch.int32 of shape \[1, 4\]"),
    ({"offs": torch.tensor([3, 2, 7, 8])}, OperandError, r"offs = \[3, 2, 7, 8\]: .*offs\[1\] = 2 follows 3"),
    ({"offs": torch.tensor([3, 3, 7, 9])}, OperandError, r"they go from 0 to a's 8 rows, .*offs\[3\] = 9"),
    ({"offs": torch.tensor([-1, 3, 7, 8])}, OperandError, r"offs\[0\] = -1"),
    ({"offsets": torch.tensor([0, 3, 3, 7, 7])}, OperandError, r"they go from 0 to a's 8 rows, .*; offsets\[4\] = 7"),
    ({"offsets": torch.tensor([1, 3, 3, 7, 8])}, OperandError, r"they go from 0 to a's 8 rows, .*; offsets\[0\] = 1"),
    ({"offsets": torch.tensor([0, 9, 3, 7, 8])}, OperandError, r"offsets\[1\] = 9"),
    ({"offs": ENDS, "recipe_a": "RowWise"}, OperandError, "recipe_a without a scale_a"),
    ({"offs": ENDS, "config": 5}, OperandError, "config is a int"),
    ({"offs": ENDS, "a": X.clone().requires_grad_(), "config": 5}, OperandError, "config is a int"),
    ({"offs": ENDS, "a": X.clone().requires_grad_(), "recipe_b": "RowWise"}, OperandError, "recipe_b without a"),
    ({"offs": ENDS, "a": X.clone().requires_grad_(), "scale_b": X.float()}, OperandError, "a is torch.bfloat16"),
    ({"a": X.clone().requires_grad_()}, OperandError, "offsets is missing"),
    ({"offs": [1], "a": X.clone().requires_grad_()}, OperandError, "offs is a builtins.list"),
    ({"offs": ENDS, "bias": torch.ones(5)}, TensorError, r"bias has shape \[5\]: \[6\] or \[4, 6\]"),
    ({"offs": ENDS, "bias": torch.ones(6, dtype=torch.int32)}, OperandError, "bias is torch.int32: to a product with"),
    ({"offs": ENDS, "bias": 3}, OperandError, "bias is a builtins.int"),
    ({"offs": ENDS, "activation": "swish"}, OperandError, "activation 'swish': known are 'relu'"),
    ({"offs": ENDS, "activation": "swiglu", "bias": torch.ones(3)}, TensorError, r"bias has shape \[3\]: \[6\]"),
    ({"offs": ENDS, "activation": "swiglu", "b": normal(4, 5, 7)}, TensorError, "b has 7 columns: a gated product"),
    ({"offs": ENDS[:2], "a": X.T, "b": X, "activation": "geglu"}, OperandError, "activation: groups of K take none"),
    ({"offs": ENDS[:2], "a": X.T, "b": X, "bias": torch.ones(5)}, OperandError, "bias: groups of K take none"),
    ({"offs": ENDS, "a": X.T, "b": X, "row_weights": torch.ones(5)}, OperandError, "row_weights: groups of K take"),
    ({"offs": ENDS, "a": Y, "b": normal(6, 8), "add_rows": ENDS}, OperandError, "add_rows: groups of columns"),
    (
        {"offs": ENDS, "a": Y, "b": normal(6, 8), "activation": "relu"},
        OperandError,
        "activation: groups of columns",
    ),
    ({"offs": ENDS, "b": normal(4, 5)}, TensorError, r"shapes \[8, 5\] and \[4, 5\]: \(rows, K\)"),
    ({"offs": ENDS, "b": normal(5)}, TensorError, r"shapes \[8, 5\] and \[5\]"),
    ({"offs": ENDS, "a": normal(4, 8, 5)}, OperandError, "offs: a and b have 3 dimensions, the first of which"),
    ({"a": normal(3, 8, 5)}, TensorError, r"shapes \[3, 8, 5\] and \[4, 5, 6\]"),
    ({"a": normal(4, 8, 5), "counts": torch.tensor([8, 9, 0, 0])}, OperandError, r"counts\[1\] = 9: a has 0 to 8 rows"),
    ({"a": normal(4, 8, 5), "counts": torch.tensor([8, 0, -1, 0])}, OperandError, r"counts\[2\] = -1"),
    ({"a": normal(4, 8, 5), "counts": ENDS[:3]}, OperandError, r"counts is torch.int32 of shape \[3\]: .* \[4\], how"),
    ({"offs": ENDS, "out": X.new_empty(8, 5)}, TensorError, r"out has shape \[8, 5\], the product \[8, 6\]"),
    ({"offs": ENDS, "out": Y.view(-1)[:48].view(8, 6)}, TensorError, "out, which is written to, shares memory with b"),
    ({"offs": ENDS, "out": X.new_empty(8, 6), "a": X.clone().requires_grad_()}, TensorError, "don't support automatic"),
]


@pytest.mark.parametrize("given, error, text", REFUSED, ids=[text for *_, text in REFUSED])
def test_bad_input_is_refused_by_name(given: dict[str, Any], error: Any, text: str) -> None:
    before = Y.clone()
    with pytest.raises(error, match=text) as caught:
        grouped_matmul(**{"a": X, "b": Y, **given})
    assert isinstance(caught.value, LayoutError) and torch.equal(Y, before)


# ----------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("said", ["offsets", "offs"])
@pytest.mark.parametrize("form", SHAPES)
def test_gradients(form: str, said: str) -> None:
    """Gradients of both operands, once and twice, against torch's of the definition in float64."""
    a, b = operands(form, grad=True)
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    ours = grouped_matmul(a, b, **groups_of(form, said), out_dtype=F32)
    theirs = definition(x, y, ENDS.tolist())
    weight = normal(*theirs.shape, dtype=BF16)
    first = [
        torch.autograd.grad((c * weight).sum(), (left, right), create_graph=True)
        for c, left, right in ((ours, a, b), (theirs, x, y))
    ]
    for mine, want in zip(*first, strict=True):
        assert mine.shape == want.shape and mine.dtype == BF16
        assert torch.allclose(mine.double(), want, rtol=1e-2, atol=1e-2) and want.abs().max() > 0
    second = [
        torch.autograd.grad(sum(g.double().square().sum() for g in grads), (left, right), allow_unused=True)
        for grads, left, right in ((first[0], a, b), (first[1], x, y))
    ]
    for mine, want in zip(*second, strict=True):
        assert torch.allclose(mine.double(), want, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("form", ["rows", "counts"])
def test_second_derivatives_with_bias_and_activation(form: str) -> None:
    """A gradient penalty through a bias of each group and silu, against float64's."""
    a, b, bias = normal(4, 8, 5, grad=True), normal(4, 5, 6, grad=True), normal(4, 6, grad=True)
    counts = torch.tensor([8, 0, 3, 5])
    ends = counts.cumsum(0)
    said: dict[str, Any] = {"counts": counts}
    if form == "rows":
        a, said = a.detach().flatten(0, 1)[: int(ends[-1])].clone().requires_grad_(), {"offs": ends}
    x, y, z = (t.detach().double().requires_grad_() for t in (a, b, bias))
    parts = [x[e, :n] if form == "counts" else x[end - n : end] for e, (n, end) in enumerate(zip(counts, ends))]
    theirs = [torch.nn.functional.silu(part @ y[e] + z[e]) for e, part in enumerate(parts)]
    c = grouped_matmul(a, b, **said, bias=bias, activation="silu", out_dtype=F32)
    ours = [c[e, :n] if form == "counts" else c[end - n : end] for e, (n, end) in enumerate(zip(counts, ends))]
    found = []
    for results, leaves in ((ours, (a, b, bias)), (theirs, (x, y, z))):
        first = torch.autograd.grad(sum(r.square().sum() for r in results), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.double().square().sum() for g in first), leaves)
        found.append((*first, *second))
    for mine, want in zip(*found, strict=True):
        assert float((mine.double() - want).norm()) <= 2e-2 * float(want.norm()) and want.abs().max() > 0


def test_gradients_of_what_is_in_no_group_are_zero() -> None:
    a, b = operands("rows", grad=True)
    grouped_matmul(a, b, offs=torch.tensor([2, 2, 5, 6])).sum().backward()
    assert not a.grad[6:].any() and a.grad[:6].abs().max() > 0 and not b.grad[1].any()
    a, b, counts = normal(3, 4, 5, grad=True), normal(3, 5, 6, grad=True), torch.tensor([4, 0, 2])
    grouped_matmul(a, b, counts=counts).float().square().sum().backward()
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    sum((x[e, :n] @ y[e]).square().sum() for e, n in enumerate(counts.tolist())).backward()
    assert torch.allclose(a.grad.double(), x.grad, rtol=2e-2, atol=2e-2)
    assert torch.allclose(b.grad.double(), y.grad, rtol=2e-2, atol=5e-2) and not a.grad[1].any()


def test_only_what_is_asked_for_is_derived() -> None:
    a, b = operands("rows")
    x = a.clone().requires_grad_()
    grouped_matmul(x, b, OFFSETS).sum().backward()
    assert x.grad is not None and b.grad is None
    with torch.no_grad():
        assert not grouped_matmul(x, b, OFFSETS).requires_grad
    assert grouped_matmul(x, b, OFFSETS).requires_grad and not grouped_matmul(a, b, OFFSETS).requires_grad
    # an operand is kept for the other's gradient alone
    c = grouped_matmul(x, b, OFFSETS)
    assert [t is None for t in c.grad_fn.saved_tensors] == [True, False, False]
    y = b.clone().requires_grad_()
    c = grouped_matmul(a, y, OFFSETS)
    assert [t is None for t in c.grad_fn.saved_tensors] == [False, True, False]
    (got,) = torch.autograd.grad(c.sum(), y)
    whole = grouped_matmul(x, y, OFFSETS)
    assert torch.equal(got, torch.autograd.grad(whole.sum(), y)[0])


@pytest.mark.parametrize("said", ["offsets", "offs"])
def test_a_repeated_recorded_call_is_a_guard_and_a_launch(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(64, 64, grad=True), normal(4, 64, 64, grad=True)
    offsets = torch.arange(5, dtype=torch.int32) * 16
    groups = {said: offsets if said == "offsets" else offsets[1:].clone()}
    with bare_launches(monkeypatch) as noted:
        with torch.no_grad():  # kept where nothing is recorded
            for _ in range(3):
                plain = grouped_matmul(x, w, **groups)
        for module, name in ((kept, "by_facts"), (api, "_recorded_alone")):
            monkeypatch.setattr(module, name, None)  # the long ways are shut
        made = len(noted.arguments)
        c = grouped_matmul(x, w, **groups)
        assert type(c.grad_fn).__name__ == "_RecordedGroupsBackward" and len(noted.arguments) == made + 1
        assert c.requires_grad and not plain.requires_grad and c.stride() == plain.stride()
        first, last = noted.arguments[made - 1 :]
        assert first[:2] == last[:2] == [x.data_ptr(), w.data_ptr()] and first[3:-2] == last[3:-2]


def backward_launches(c: Any, noted: Any, grad: Any, leaves: Any) -> tuple[list[list[int]], Any]:
    """The launches of a backward pass, without addresses of results, and the gradients."""
    noted.arguments.clear()
    found = torch.autograd.grad(c, leaves, grad)
    return [[*each[:2], *each[3:-2]] for each in noted.arguments], found


@pytest.mark.parametrize("said", ["offsets", "offs"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("wants", [(True, True), (True, False), (False, True)])
def test_a_repeated_backward_pass_is_a_guard_and_its_launches(
    said: str, columns: bool, wants: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the arguments of the first one's, and the results lie as those do; columns: of the weights' rows."""
    values = normal(64, 64), normal(4, 64, 32), normal(64, 32)
    x, w, grad = (t.mT.contiguous().mT if columns and t.ndim == 3 else t for t in values)
    x, w = (t.detach().requires_grad_(want) for t, want in zip((x, w), wants))
    leaves = [t for t in (x, w) if t.requires_grad]
    offsets = torch.arange(5, dtype=torch.int32) * 16
    groups = {said: offsets if said == "offsets" else offsets[1:].clone()}
    with bare_launches(monkeypatch) as noted:
        first, wanted = backward_launches(grouped_matmul(x, w, **groups), noted, grad, leaves)
        assert len(first) == len(leaves)
        for again in range(3):
            if again == 2:
                for module, name in ((kept, "by_facts"), (kept_gradients, "by_facts"), (api, "grouped_gradients")):
                    monkeypatch.setattr(module, name, None)  # the long ways are shut
            made, found = backward_launches(grouped_matmul(x, w, **groups), noted, grad, leaves)
            assert made == first
            assert [(t.shape, t.stride(), t.dtype) for t in found] == [(t.shape, t.stride(), t.dtype) for t in wanted]
            assert [t.data_ptr() for t in found] == [each[2] for each in noted.arguments]
        for other in (grad.t().contiguous().t(), grad[:1].expand(64, 32)):
            with pytest.raises(TypeError):  # no guard's: the long way is taken, and it is shut
                backward_launches(grouped_matmul(x, w, **groups), noted, other, leaves)
        kept.READY.clear()
        assert not kept_gradients.BACKWARD.seen


def test_guards_leave_batches_and_finished_groups_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that were kept where nothing is recorded, whose derivatives are no node of groups."""
    x, w, bias = normal(4, 16, 64, grad=True), normal(4, 64, 64, grad=True), normal(64, grad=True)
    rows, offsets = normal(64, 64, grad=True), torch.arange(5, dtype=torch.int32) * 16
    counts = offsets[:4].clone() // 3
    calls = (
        lambda: grouped_matmul(x, w, counts=counts), lambda: grouped_matmul(rows, w, offsets, bias=bias),
        lambda: grouped_matmul(rows, w, offsets, activation="relu"),
    )  # fmt: skip
    with bare_launches(monkeypatch):
        for call in calls:
            with torch.no_grad():
                for _ in range(3):
                    assert call().grad_fn is None
            assert type(call().grad_fn).__name__ not in ("_RecordedGroupsBackward", "NoneType")
        out = torch.empty(64, 64, dtype=rows.dtype)
        with torch.no_grad():
            for _ in range(3):
                assert grouped_matmul(rows, w, offsets, out=out) is out
        with pytest.raises(TensorError, match="don't support automatic differentiation"):
            grouped_matmul(rows, w, offsets, out=out)


@pytest.mark.parametrize("form", SHAPES)
def test_forward_mode_and_functional_gradients(form: str) -> None:
    a, b = operands(form)
    groups = groups_of(form, "offs")

    def function(x: Any, y: Any) -> Any:
        return grouped_matmul(x, y, **groups, out_dtype=F32)

    def want(x: Any, y: Any) -> Any:
        return definition(x.float(), y.float(), ENDS.tolist())

    got, expected = (torch.func.jvp(f, (a, b), (b.new_ones(a.shape), a.new_ones(b.shape)))[1] for f in (function, want))
    assert torch.allclose(got.float(), expected, rtol=1e-2, atol=1e-2)
    for at in (0, 1):
        got, expected = (torch.func.grad(lambda x, y, f=f: f(x, y).square().sum(), at)(a, b) for f in (function, want))
        assert torch.allclose(got.float(), expected.float(), rtol=3e-2, atol=3e-2)


def test_eight_bits_and_scales_have_no_gradient() -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in operands("rows"))
    with pytest.raises(TensorError, match=r"a requires grad, and this product has no gradient: use torch.no_grad"):
        grouped_matmul(a.requires_grad_(), b, OFFSETS)
    scale = torch.ones(8, 1).requires_grad_()
    with pytest.raises(TensorError, match="scale_a requires grad"):
        grouped_matmul(a.detach(), b, OFFSETS, scale_a=scale)
    with torch.no_grad():
        grouped_matmul(a, b, OFFSETS, scale_a=scale)


# ------------------------------------------------------------------------------------------------- modes and compilers


@pytest.mark.parametrize("form", SHAPES)
def test_opcheck(form: str) -> None:
    for grad in (False, True):
        a, b = operands(form, grad)
        for groups, said in ((None, "offsets"),) if form == "batch" else ((OFFSETS, "offsets"), (ENDS, "offs")):
            results = torch.library.opcheck(OP.grouped_matmul.default, (a, b, groups, said))
            assert set(results.values()) == {"SUCCESS"}, results


def test_opcheck_of_masked_groups_and_scales() -> None:
    counts = torch.tensor([4, 0, 2], dtype=torch.int32)
    for grad in (False, True):
        arguments = normal(3, 4, 5, grad=grad), normal(3, 5, 6, grad=grad), counts, "counts"
        assert set(torch.library.opcheck(OP.grouped_matmul.default, arguments).values()) == {"SUCCESS"}
        a, b = operands("rows", grad)
        bias = normal(4, 6, dtype=F32, grad=grad)
        arguments = a, b, ENDS, "offs", None, None, F32, "", "", "", bias, "gelu"
        assert set(torch.library.opcheck(OP.grouped_matmul.default, arguments).values()) == {"SUCCESS"}
    a, b = (x.to(torch.float8_e4m3fn) for x in operands("rows"))
    arguments = a, b, OFFSETS, "offsets", torch.rand(8, 1), torch.rand(4, 1, 1), F32
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")  # torch scales no float8
    results = torch.library.opcheck(OP.grouped_matmul.default, arguments, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", SHAPES)
def test_the_compiler_takes_it_whole(form: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    groups = groups_of(form, "offs")

    def step(x: Any, y: Any, z: Any) -> Any:
        return grouped_matmul(x, y, **({"offs": z} if groups else {})).float().square().mean()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for scale in (1, 2):
        a, b = operands(form)
        a, b = (a.repeat(scale, 1), b) if form == "rows" else (a, b)
        a, b = a.requires_grad_(), b.requires_grad_()
        want = torch.autograd.grad(step(a, b, ENDS * scale if form == "rows" else ENDS), (a, b))
        got = torch.autograd.grad(compiled(a, b, ENDS * scale if form == "rows" else ENDS), (a, b))
        assert all(torch.allclose(x.float(), y.float(), rtol=1e-2, atol=1e-3) for x, y in zip(got, want, strict=True))


def test_sizes_change_without_a_new_compilation() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x, y, z: grouped_matmul(x, y, z) + 1, fullgraph=True, backend=counter, dynamic=True)
    for rows in (8, 9, 33, 200):
        a, offsets = normal(rows, 5), torch.tensor([0, 3, 3, 7, rows], dtype=torch.int32)
        assert torch.equal(compiled(a, Y, offsets), grouped_matmul(a, Y, offsets) + 1)
    assert counter.frame_count == 1


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_an_output_under_the_compiler(form: str) -> None:
    torch._dynamo.reset()
    a, b = operands(form)
    ends = torch.tensor([2, 2, 5, 6])
    want = grouped_matmul(a, b, offs=ends, out=torch.full_like(grouped_matmul(a, b, offs=ends), 7.0))

    def call(x: Any, y: Any, z: Any, into: Any) -> Any:
        return grouped_matmul(x, y, offs=z, out=into) * 1

    out = torch.full(want.shape, 7.0, dtype=BF16)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(a, b, ends, out), want)
    assert torch.equal(out, want)


COMPILED = (
    (lambda a: grouped_matmul(a, Y), "offsets is missing"),
    (lambda a: grouped_matmul(5, Y, OFFSETS), "a is a builtins.int"),
    (lambda a: grouped_matmul(a, Y, [0, 1]), "offsets is a builtins.list"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, offs=ENDS), "offsets and offs: groups are said by one of"),
    (lambda a: grouped_matmul(a.float(), Y, OFFSETS), "a is torch.float32: a grouped product is of bfloat16"),
    (lambda a: grouped_matmul(a, Y, ENDS), r"offsets is torch.int32 of shape \[\w+\]: int32 or int64 of \[5\]"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, out_dtype="bf16"), "out_dtype bf16: a product of torch.bfloat16"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, out_dtype=torch.int8), "out_dtype torch.int8: a product of"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, config=5), "config is a int; it is an Sm90Config"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, recipe_a="Rows"), "recipe_a 'Rows': known are TensorWise"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, out=3), "out is a int, not a torch tensor"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, out=X), r"out has shape \[8, 5\], the product \[8, 6\]"),
    (lambda a: grouped_matmul(a, Y, OFFSETS, scale_a=a), "a is torch.bfloat16: a grouped product with scales"),
)


@pytest.mark.parametrize("function, text", COMPILED, ids=[text for _, text in COMPILED])
def test_refusals_keep_their_text_under_the_compiler(function: Any, text: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=text):
        torch.compile(function, fullgraph=True, backend="eager")(X)


def test_fake_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.empty(8, 5, device="cuda", dtype=BF16), torch.empty(4, 5, 6, device="cuda", dtype=BF16)
        ends = torch.empty(4, device="cuda", dtype=torch.int32)
        got = grouped_matmul(a, b, offs=ends, out_dtype=F32)
        assert got.shape == (8, 6) and got.dtype == F32 and got.device.type == "cuda" and got.is_contiguous()
        assert grouped_matmul(a.mT, a, offs=ends).shape == (4, 5, 5)
        columns = grouped_matmul(b.mT, a.mT, offs=ends)
        assert columns.shape == (6, 8) and columns.stride() == (1, 6)
        with pytest.raises(TensorError, match="shapes"):
            grouped_matmul(a, a, offs=ends)
    meta = [x.to("meta") for x in (*operands("rows"), OFFSETS)]
    assert grouped_matmul(*meta).shape == (8, 6)


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any, offsets: Any) -> Any:
            return torch.relu(grouped_matmul(x, y, offsets))

    given = (*operands("rows"), OFFSETS)
    for strict in (False, True):
        exported = torch.export.export(Model(), given, strict=strict)
        assert any("layoutgemm.grouped_matmul" in str(node.target) for node in exported.graph.nodes)
        assert torch.equal(exported.module()(*given), Model()(*given))
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(Model(), given, dynamic_shapes=({0: rows}, None, None))
    a, offsets = normal(20, 5), torch.tensor([0, 3, 3, 7, 20], dtype=torch.int32)
    assert torch.equal(exported.module()(a, Y, offsets), Model()(a, Y, offsets))


def test_autocast() -> None:
    a, b = operands("rows", dtype=F32)
    for kind in (BF16, F16):
        want = grouped_matmul(a.to(kind), b.to(kind), OFFSETS)
        with torch.autocast("cpu", dtype=kind):
            for got in (grouped_matmul(a, b, OFFSETS), OP.grouped_matmul(a, b, OFFSETS)):
                assert got.dtype == kind and torch.equal(got, want)
            with torch.autocast("cpu", enabled=False), pytest.raises(OperandError, match=r"a is torch\.float32"):
                grouped_matmul(a, b, OFFSETS)
    with torch.autocast("cpu", dtype=BF16):
        x = a.clone().requires_grad_()
        grouped_matmul(x, b, OFFSETS).sum().backward()
        assert x.grad.dtype == F32
        eight = [t.to(torch.float8_e4m3fn) for t in (a, b)]
        assert grouped_matmul(*eight, OFFSETS).dtype == BF16  # left as they are


def test_modes_and_subclasses_see_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    a, b = operands("rows")
    with Watch():
        grouped_matmul(a, b, OFFSETS)
    assert "layoutgemm.grouped_matmul.default" in seen

    class Own(torch.Tensor):
        """A user's tensors."""

    got = grouped_matmul(a.as_subclass(Own), b, OFFSETS)
    assert type(got) is Own and torch.equal(got.as_subclass(torch.Tensor), grouped_matmul(a, b, OFFSETS))


@pytest.mark.filterwarnings("ignore")
def test_trace() -> None:
    a, b = operands("rows")
    traced = torch.jit.trace(lambda x: grouped_matmul(x, b, OFFSETS), a)
    assert torch.equal(traced(a + 1), grouped_matmul(a + 1, b, OFFSETS))


def test_gradients_of_each_slice() -> None:
    a, b = normal(3, 8, 5), operands("rows")[1]

    def loss(x: Any, y: Any) -> Any:
        return grouped_matmul(x, y, OFFSETS).float().square().sum()

    each = torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(a, b)
    for i in range(3):
        for mine, want in zip(each, torch.func.grad(loss, (0, 1))(a[i], b), strict=True):
            assert torch.equal(mine[i], want)


def test_vmap() -> None:
    a, offsets = normal(3, 8, 5), torch.stack([OFFSETS, OFFSETS, torch.tensor([0, 0, 1, 2, 8], dtype=torch.int32)])
    got = torch.func.vmap(grouped_matmul, in_dims=(0, None, 0))(a, Y, offsets)
    assert torch.equal(got, torch.stack([grouped_matmul(a[i], Y, offsets[i]) for i in range(3)]))


def test_a_gradient_lies_as_its_weights() -> None:
    a, b = operands("rows")
    for weights in (b.clone(), b.mT.contiguous().mT):
        x, y = a.clone().requires_grad_(), weights.detach().requires_grad_()
        grouped_matmul(x, y, OFFSETS).sum().backward()
        assert y.grad.stride() == y.stride() and x.grad.is_contiguous()


def test_forward_mode_in_eager() -> None:
    import torch.autograd.forward_ad as forward

    a, b = operands("rows")
    with forward.dual_level():
        got = grouped_matmul(forward.make_dual(a, torch.ones_like(a)), b, OFFSETS, out_dtype=F32)
        want = grouped_matmul(torch.ones_like(a), b, OFFSETS, out_dtype=F32)
        assert torch.equal(forward.unpack_dual(got).tangent, want)
