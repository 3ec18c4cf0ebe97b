"""matmul with several parts: against torch's formulas, under compilers and transforms, derived, refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests import needs

torch = needs.module("torch")

from torch._inductor.utils import run_and_get_code
from torch.nn.functional import gelu, silu
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import Sm90Config, explain_matmul, matmul
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.kernels import Prologue, Triangles
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Aux,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    Residual,
    RowReduce,
    Scale,
)
from layoutgemm.schedule import Linear, Rotated, Triangular
from layoutgemm.torch_op.composed import operators
from layoutgemm.torch_op.composed.parts import AskedParts, parts_text

BF16 = torch.bfloat16
TILE = Sm90Config((64, 64), consumers=1, loader="warp")
RANKS = Rotated(Linear("N"), ranks=4)
SCALED = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")
MASKED = Prologue.of(lambda x, i, k, ops, s: ops.where(k <= i, x * s, 0.0), s="m")
SHIFTED = Prologue.of(lambda x, i, k, ops: x + 1.0)
FINISH = Epilogue(Bias("n", "bf16"), Activation("gelu"))
KEPT = Epilogue(Bias("n", "bf16"), Aux("bf16"), Activation("relu"))
NAMED = Epilogue(Bias("m", "f32", "s"))
CAUSAL = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, -1e30))
OF_GROUPS = Epilogue(RowReduce("max", each=32))
STATISTICS = Epilogue(CAUSAL, RowReduce("softmax", "row"), stores_c=False)
random = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> Any:
    return (torch.randint(-8, 9, shape, generator=random).float() / 8).to(BF16)


A, B, A2, B2, UP, BIAS = drawn(136, 64), drawn(64, 72), drawn(136, 16), drawn(16, 72), drawn(64, 72), drawn(72)
BATCHES = tuple([drawn(3, *size) for size in ((40, 64), (40, 16), (64, 72), (64, 72), (16, 72))])
SCALE, ROWS, TO = torch.rand(136, generator=random), torch.tensor([5, 0, 7, 130]), torch.tensor([3, 8, 0, 2])
OUT, LISTED = torch.full((9, 72), 7.0).to(BF16), torch.tensor([1 + 65536, 0], dtype=torch.int32)
SQUARE, SIDES = drawn(136, 136).tril(), torch.arange(136) // 64
TILES = torch.arange(136)[:, None] // 64, torch.arange(72) // 64
LOWER = TILES[0] >= TILES[1]


def weighted(p: Any, q: Any, ops: Any, w: Any) -> Any:
    return w * p + q


def with_aux(a: Any, a2: Any, b: Any, b2: Any, bias: Any) -> Any:
    aux = torch.zeros(136, 72, dtype=BF16)
    c = matmul((a, a2), (b, b2), epilogue=KEPT, given={"bias": bias, "aux": aux}, order="lower", config=TILE)
    return torch.cat([c, aux])


def scaled(a: Any, s: Any) -> Any:
    return (a.float() * s.float()[:, None]).to(BF16).to(a.dtype) if a.dtype is BF16 else a * s[:, None]


class Case(NamedTuple):
    """A call, its formula of the same operands, and how many of these have gradients."""

    call: Callable[..., Any]
    formula: Callable[..., Any]
    operands: tuple[Any, ...]
    derived: int = 0


CASES = {
    "an order": Case(
        lambda a, b: matmul(a, b, order=Triangular("lower"), config=TILE),
        lambda a, b: torch.where(LOWER, a @ b, 0.0), (A, B), 2,
    ),
    "an order's rank": Case(lambda a, b: matmul(a, b, order=RANKS, given={"rank": 2}), torch.matmul, (A, B), 2),
    "an order's function": Case(
        lambda a, b: matmul(a, b, order=lambda t, rows, columns: (t % rows, t // rows)), torch.matmul, (A, B)
    ),
    "a list of tiles": Case(
        lambda a, b, t: matmul(a, b, order="list", given={"tiles": t}, config=TILE),
        lambda a, b, t: torch.where((TILES[0] == TILES[1]) & (TILES[0] < 2), a @ b, 0.0), (A, B, LISTED), 2,
    ),
    "an order, bias and activation": Case(
        lambda a, b, bias: matmul(a, b, order="lower", bias=bias, activation="silu", config=TILE),
        lambda a, b, bias: torch.where(LOWER, silu(a @ b + bias), 0.0), (A, B, BIAS), 3,
    ),
    "two pairs": Case(
        lambda a, a2, b, b2, bias: matmul((a, a2), (b, b2), bias=bias, activation="gelu"),
        lambda a, a2, b, b2, bias: gelu(a @ b + a2 @ b2 + bias), (A, A2, B, B2, BIAS), 5,
    ),
    "two pairs, their epilogue and an order": Case(
        with_aux,
        lambda a, a2, b, b2, bias: torch.cat(
            [torch.where(LOWER, x, 0.0) for x in ((a @ b + a2 @ b2 + bias).relu(), a @ b + a2 @ b2 + bias)]
        ),
        (A, A2, B, B2, BIAS), 5,
    ),
    "several matrices and an epilogue": Case(
        lambda a, b, up, bias: matmul(a, (b, up), combine="silu", epilogue=FINISH, given={"bias": bias}),
        lambda a, b, up, bias: gelu(silu(a @ b) * (a @ up) + bias), (A, B, UP, BIAS), 4,
    ),
    "several matrices in two pairs": Case(
        lambda a, a2, b, up, b2, bias: matmul(
            (a, a2), ((b, up), (b2, -b2)), combine=weighted, epilogue=FINISH, given={"bias": bias, "w": 0.5}
        ),
        lambda a, a2, b, up, b2, bias: gelu(0.5 * (a @ b + a2 @ b2) + a @ up - a2 @ b2 + bias),
        (A, A2, B, UP, B2, BIAS), 6,
    ),
    "rows added to each other": Case(
        lambda a, b, rows, to, scale: matmul(a, b, rows=rows, add_rows=to, row_weights=scale, activation="silu"),
        lambda a, b, rows, to, scale: torch.zeros(4, 72, dtype=a.dtype, device=a.device).index_add(
            0, to, (silu(a[rows] @ b) * scale[:, None]).to(a.dtype)
        ),
        (A, B, ROWS, torch.tensor([3, 1, 3, 3]), SCALE[:4]), 2,
    ),
    "batches of several matrices in two pairs": Case(
        lambda a, a2, b, up, b2: matmul((a, a2), ((b, up), (b2, -b2)), combine=weighted, given={"w": 0.5}),
        lambda a, a2, b, up, b2: 0.5 * (a @ b + a2 @ b2) + a @ up - a2 @ b2, BATCHES, 5,
    ),
    "a gate of two pairs": Case(
        lambda a, a2, b, b2: matmul((a, a2), (b, b2), activation="swiglu"),
        lambda a, a2, b, b2: silu((a @ b + a2 @ b2)[:, :36]) * (a @ b + a2 @ b2)[:, 36:], (A, A2, B, B2), 4,
    ),
    "several matrices of chosen rows": Case(
        lambda a, b, up, rows: matmul(a, (b, up), rows=rows, combine=weighted, given={"w": 0.5}),
        lambda a, b, up, rows: 0.5 * (a[rows] @ b) + a[rows] @ up, (A, B, UP, ROWS), 3,
    ),
    "a prologue and an epilogue": Case(
        lambda a, b, s, bias: matmul(a, b, prologue=SCALED, epilogue=FINISH, given={"s": s, "bias": bias}),
        lambda a, b, s, bias: gelu(scaled(a, s) @ b + bias), (A, B, SCALE, BIAS), 4,
    ),
    "a triangular A": Case(
        lambda a, b: matmul(a, b, triangles=Triangles("lower")), lambda a, b: a.tril() @ b, (SQUARE, A), 2,
    ),
    "two triangles, an order and an activation": Case(
        lambda a, b, bias: matmul(
            a, b, triangles=Triangles("lower", "lower"), order="lower", bias=bias, activation="gelu", config=TILE
        ),
        lambda a, b, bias: torch.where(SIDES[:, None] >= SIDES, gelu(a.tril() @ b.tril() + bias), 0.0),
        (SQUARE, SQUARE.flip(0, 1).mT, SCALE.to(BF16)), 3,
    ),
    "a triangular B and an epilogue": Case(
        lambda a, b, bias: matmul(a, b, triangles=Triangles(b="upper"), epilogue=FINISH, given={"bias": bias}),
        lambda a, b, bias: gelu(a @ b.triu() + bias), (A.mT, SQUARE.mT, SCALE.to(BF16)), 3,
    ),
    "a triangular A and a second pair": Case(
        lambda a, b, a2, b2, bias: matmul((a, a2), (b, b2), bias=bias, triangles=Triangles("lower")),
        lambda a, b, a2, b2, bias: a.tril() @ b + a2 @ b2 + bias, (SQUARE, A, A2, B2[:, :64], BIAS[:64]), 5,
    ),
    "a triangle by a prologue": Case(
        lambda a, b, s: matmul(a, b, prologue=MASKED, triangles=Triangles("lower"), given={"s": s}),
        lambda a, b, s: scaled(a.tril(), s) @ b, (A @ A.mT / 8, A, SCALE), 3,
    ),
    "a triangle by a prologue, a gate and a second pair": Case(
        lambda a, b, s, a2, b2: matmul(
            (a, a2), (b, b2), prologue=MASKED, triangles=Triangles("lower"), activation="swiglu", given={"s": s}
        ),
        lambda a, b, s, a2, b2: (lambda x: silu(x[:, :32]) * x[:, 32:])(scaled(a.tril(), s) @ b + a2 @ b2),
        (A @ A.mT / 8, A, SCALE, A2, B2[:, :64]), 5,
    ),
    "a prologue and a gate": Case(
        lambda a, b, s: matmul(a, b, prologue=SCALED, activation="swiglu", given={"s": s}),
        lambda a, b, s: silu(scaled(a, s) @ b[:, :36]) * (scaled(a, s) @ b[:, 36:]), (A, B, SCALE), 3,
    ),
    "a prologue and an order": Case(
        lambda a, b, s: matmul(a, b, prologue=SCALED, order="lower", given={"s": s}, config=TILE),
        lambda a, b, s: torch.where(LOWER, scaled(a, s) @ b, 0.0), (A, B, SCALE), 3,
    ),
    "chosen rows and an epilogue": Case(
        lambda a, b, rows, bias: matmul(a, b, rows=rows, epilogue=FINISH, given={"bias": bias}),
        lambda a, b, rows, bias: gelu(a[rows] @ b + bias), (A, B, ROWS, BIAS), 2,
    ),
    "an order of rows placed in an output": Case(
        lambda a, b, to, out: matmul(a, b, out_rows=to, order="lower", config=TILE, out=out.clone()),
        lambda a, b, to, out: out.index_copy(0, to, torch.where(LOWER, a @ b, out[to].to(a.dtype)).to(out.dtype)),
        (A, B, torch.arange(136).flip(0), torch.full((140, 72), 7.0).to(BF16)),
    ),
    "rows placed in an output": Case(
        lambda a, b, rows, to, bias, out: matmul(
            a, b, rows=rows, out_rows=to, epilogue=FINISH, given={"bias": bias}, out=out.clone()
        ),
        lambda a, b, rows, to, bias, out: out.index_copy(0, to, gelu(a[rows] @ b + bias)),
        (A, B, ROWS, TO, BIAS, OUT),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_formula_is_computed_and_compiled_as_one_operator(name: str) -> None:
    call, formula, operands, _ = CASES[name]
    found = call(*operands)
    want = formula(*[x.double() if x.dtype is BF16 and "prologue" not in name else x for x in operands])
    torch.testing.assert_close(found.double(), want.double(), rtol=2**-6, atol=2**-5)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(*operands), found)


@pytest.mark.parametrize(
    ("name", "call_of"),
    [
        ("two pairs", "composed_matmul"),
        ("several matrices in two pairs", "composed_matmul"),
        ("an order", "composed_result"),
    ],
)
def test_generated_code_calls_products_with_parts_directly(name: str, call_of: str) -> None:
    call, _, operands, _ = CASES[name]
    torch._dynamo.reset()
    found, (code, *_) = run_and_get_code(torch.compile(call, fullgraph=True), *operands)
    assert torch.equal(found, call(*operands))
    assert "torch.ops.layoutgemm.composed_matmul.default(" not in code and f"layoutgemm_direct.{call_of}" in code


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.derived])
def test_gradients_are_those_of_the_formula(name: str) -> None:
    """By autograd in eager mode, and by torch.func."""
    call, formula, operands, count = CASES[name]
    leaves = [x.detach().clone().requires_grad_() for x in operands[:count]]
    value = call(*leaves, *operands[count:])
    slope = drawn(*value.shape)
    found = torch.autograd.grad(value, leaves, slope)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = torch.autograd.grad(formula(*wide, *operands[count:]), wide, slope.double())
    mapped = torch.func.grad(lambda *x: (call(*x, *operands[count:]) * slope).float().sum(), tuple(range(count)))
    for got, by_func, right in zip(found, mapped(*operands[:count]), want, strict=True):
        for each in (got, by_func):
            assert float((each.double() - right).abs().max() / right.abs().max()) < 2**-6


def test_a_triangles_gradient_is_recorded_too() -> None:
    found = []
    for kind in (BF16, torch.float64):
        a, b = (x.to(kind).clone().requires_grad_() for x in (SQUARE, A))
        c = matmul(a, b, triangles=Triangles("lower")) if kind is BF16 else a.tril() @ b
        first = torch.autograd.grad(c.square().sum(), (a, b), create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(x.square().sum() for x in first), (a, b))])
    assert not found[0][0].triu(1).any() and not found[0][2].triu(1).any()
    for got, right in zip(*found, strict=True):
        assert float((got.detach().double() - right.detach()).abs().max() / right.detach().abs().max()) < 2**-6


@pytest.mark.parametrize("name", ["an order, bias and activation", "two pairs"])
def test_compiled_gradients_with_other_sizes(name: str) -> None:
    call, _, operands, _ = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (136, 72):
        some = [x[:rows] if x.shape[0] == 136 else x for x in operands]
        found, want = [], []
        for function, into in ((call, want), (compiled, found)):
            leaves = [x.detach().clone().requires_grad_() for x in some]
            value = function(*leaves) if rows == 136 else function(*leaves)[:rows]
            into += torch.autograd.grad(value.float().sum(), leaves)
        for got, right in zip(found, want, strict=True):
            torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-4)


MAPPED = {
    "an order, bias and activation": (0, 0, None), "a prologue and an epilogue": (0, None, 0, None),
    "a triangular B and an epilogue": (None, 0, 0), "a prologue and a gate": (0, 0, None),
    "two pairs": (0, None, 0, None, None), "a prologue and an order": (None, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_one_product_where_a_kernel_has_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, _, operands, _ = CASES[name]
    made: list[int] = []
    real = operators.computed
    monkeypatch.setattr(operators, "computed", lambda *given: made.append(1) or real(*given))
    given = [torch.stack([x, x / 2]) if at == 0 else x for x, at in zip(operands, MAPPED[name], strict=True)]
    found = torch.vmap(call, MAPPED[name])(*given)
    assert len(made) == 1
    for i in range(2):
        assert torch.equal(found[i], call(*[x[i] if at == 0 else x for x, at in zip(given, MAPPED[name], strict=True)]))


def causal(a: Any, b: Any) -> Any:
    most, total = torch.zeros(136), torch.zeros(136)
    given = {"row_max": most, "row_log_sum_exp": total}
    assert matmul(a, b, order="lower", epilogue=STATISTICS, given=given, config=TILE).shape == (0,)
    return torch.stack([most, total])


def test_causal_scores_have_their_softmax_statistics() -> None:
    """Tiles above the diagonal are not computed, and count as nothing."""
    keys = drawn(64, 136)
    scores = (A.double() @ keys.double()).masked_fill(torch.ones(136, 136).triu(1).bool(), -torch.inf)
    want = torch.stack([scores.amax(1), scores.logsumexp(1)])
    torch.testing.assert_close(causal(A, keys).double(), want, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(causal, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(A, keys), causal(A, keys))
    wide = [x.double().requires_grad_() for x in (A, keys)]
    scores = (wide[0] @ wide[1]).masked_fill(torch.ones(136, 136).triu(1).bool(), -torch.inf)
    want = torch.autograd.grad(scores.amax(1).sum() + scores.logsumexp(1).square().sum(), wide)
    for function in (causal, compiled):
        leaves = [x.clone().requires_grad_() for x in (A, keys)]
        most, total = function(*leaves)
        for got, right in zip(torch.autograd.grad(most.sum() + total.square().sum(), leaves), want, strict=True):
            assert float((got.double() - right).abs().max() / right.abs().max()) < 2**-6


def test_a_compiled_call_writes_some_tiles_of_two_tensors() -> None:
    def into(out: Any, aux: Any) -> Any:
        given = {"bias": BIAS, "aux": aux}
        return matmul(A, B, order="lower", epilogue=KEPT, given=given, config=TILE, out=out)

    torch._dynamo.reset()
    found: list[Any] = []
    for function in (into, torch.compile(into, fullgraph=True, backend="aot_eager")):
        found.append([torch.full((136, 72), 7.0).to(BF16), torch.zeros(136, 72).to(BF16)])
        function(*found[-1])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
    assert bool((found[0][0][~LOWER] == 7).all() and found[0][1][LOWER].any())


def test_what_an_order_leaves_out_keeps_its_gradient() -> None:
    """A written matrix keeps its elements outside of the tiles, and their gradient."""
    before, a = torch.ones(136, 72, dtype=BF16).requires_grad_(), A.clone().requires_grad_()
    aux = before * 2
    matmul(a, B, order="lower", epilogue=KEPT, given={"bias": BIAS, "aux": aux}, config=TILE)
    of_a, of_aux = torch.autograd.grad(aux.float().square().sum(), (a, before))
    assert torch.equal(of_aux != 0, ~LOWER) and torch.equal(of_aux[~LOWER], torch.full_like(of_aux[~LOWER], 8))
    want = (torch.where(LOWER, 2 * (A.double() @ B.double() + BIAS), 0.0)) @ B.double().mT
    assert float((of_a.double() - want).abs().max() / want.abs().max()) < 2**-6


def test_other_callers_see_one_operator() -> None:
    """vmap, second derivatives, forward mode, meta tensors, autocast, export, and torch's own checks of operators."""
    several, lower = torch.stack([A, -A]), CASES["an order"].call
    assert torch.equal(torch.vmap(lambda a: lower(a, B))(several), torch.stack([lower(a, B) for a in several]))
    want = torch.stack([matmul((a, A2), (B, B2), bias=BIAS) for a in several])
    assert torch.equal(torch.vmap(lambda a: matmul((a, A2), (B, B2), bias=BIAS))(several), want)
    aux = torch.zeros(2, 136, 72, dtype=BF16)
    made = torch.vmap(lambda a, x: matmul((a, A2), (B, B2), epilogue=KEPT, given={"bias": BIAS, "aux": x}))(
        several, aux
    )
    assert torch.equal(made, aux.relu()) and bool(aux.any())

    def square(f: Callable[..., Any]) -> Callable[..., Any]:
        return torch.func.grad(lambda a: torch.func.grad(lambda x: f(x).square().sum())(a).sum())

    ours = square(lambda x: matmul(x.to(BF16), B, order="lower", config=TILE, out_dtype=torch.float32))(A.float())
    right = square(lambda x: torch.where(LOWER, x @ B.float(), 0.0))(A.float())
    torch.testing.assert_close(ours, right, rtol=2**-6, atol=2**-6)
    seconds = []
    for function, kind in ((lower, BF16), (CASES["an order"].formula, torch.float64)):
        leaf = A.to(kind).clone().requires_grad_()
        first = torch.autograd.grad(function(leaf, B.to(kind)).square().sum(), leaf, create_graph=True)
        seconds += [x.double() for x in torch.autograd.grad(first[0].square().sum(), leaf)]
    assert float((seconds[0] - seconds[1]).abs().max() / seconds[1].abs().max()) < 2**-5
    tangent = torch.func.jvp(lambda a: lower(a, B), (A,), (A2.repeat(1, 4),))[1]
    torch.testing.assert_close(tangent, lower(A2.repeat(1, 4), B))
    assert matmul(A.to("meta"), B.to("meta"), order="lower").shape == (136, 72)
    with torch.autocast("cpu", BF16):
        assert torch.equal(lower(A.float(), B.float()), lower(A, B))
        named = parts_text(AskedParts(), 2, (), ())
        found = torch.ops.layoutgemm.composed_matmul([A.float(), A2.float()], [B, B2], [], [], [], named)
        assert torch.equal(found, matmul((A, A2), (B, B2)))

    class Sum(torch.nn.Module):
        def forward(self, a: Any, b: Any, a2: Any, b2: Any) -> Any:
            return lower(a, b) + matmul((a, a2), (b, b2))

    exported = torch.export.export(Sum(), (A, B, A2, B2)).run_decompositions()
    assert torch.equal(exported.module()(A, B, A2, B2), Sum()(A, B, A2, B2))
    targets = [str(node.target) for node in exported.graph.nodes if "layoutgemm" in str(node.target)]
    assert targets == ["layoutgemm.composed_matmul.default"] * 2


def test_operators_pass_torchs_checks() -> None:
    checked = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    a, b, bias = [x.clone().requires_grad_() for x in (A, B, BIAS)]
    text = parts_text(AskedParts("lower", activation="relu"), 1, ("bias",), ())
    of_ours = torch.ops.layoutgemm
    torch.library.opcheck(of_ours.composed_matmul.default, ([a], [b], [bias], [], [], text), test_utils=checked)
    part = torch.ones(136, 72, requires_grad=True), [A], [B], [BIAS], [], [], text, BF16
    torch.library.opcheck(of_ours.visited_part.default, part, test_utils=checked)
    text = parts_text(AskedParts(epilogue=KEPT), 2, (), ("bias", "aux"))
    aux = torch.zeros(136, 72, dtype=BF16)
    pairs = [A, A2], [B, B2], [BIAS], [aux], [], [], text
    torch.library.opcheck(of_ours.composed_matmul_writing.default, pairs, test_utils=checked)
    text = parts_text(AskedParts(combine=weighted), 2, ("rows",), ("w",))
    with FlopCounterMode(display=False) as counted:
        of_ours.composed_matmul([A], [B, UP], [ROWS], [0.5], [], text)
    assert counted.get_total_flops() == 2 * 2 * len(ROWS) * 64 * 72
    for changed, message in (("nothing", "no parts' text"), (text + " ", "the parts' text is")):
        with pytest.raises(OperandError, match=message):
            of_ours.composed_matmul([A], [B, UP], [ROWS], [0.5], [], changed)
    with pytest.raises(OperandError, match="read has 0 operands, and the parts have rows"):
        of_ours.composed_matmul([A], [B, UP], [], [0.5], [], text)


REFUSED: list[tuple[str, Callable[..., Any]]] = [
    ("order = 'spiral': known are", lambda a, b: matmul(a, b, order="spiral")),
    ("rank is missing", lambda a, b: matmul(a, b, order=RANKS)),
    ("of groups of columns and a symmetric order", lambda a, b: matmul(
        a, b, order="symmetric", epilogue=OF_GROUPS, given={"row_max": torch.zeros(136, 5)})),
    ("rows and triangular operands: rows in another order are no triangle", lambda a, b: matmul(
        a, b, rows=ROWS, triangles=Triangles("lower"))),
    (r"f\(a\) is lower triangular, and f\(a\)\[0, 1\] is", lambda a, b: matmul(
        a.tril(), b, prologue=SHIFTED, triangles=Triangles("lower"))),
    ("triangles is a str: a Triangles", lambda a, b: matmul(a, b, triangles="lower")),
    ("two operands of the product are named s", lambda a, b: matmul(
        a, b, prologue=SCALED, epilogue=NAMED, given={"s": SCALE})),
    ("a is lower triangular, and a.0, 1. is", lambda a, b: matmul((a, a), (b, b), triangles=Triangles("lower"))),
    ("b is of Tensor and Tensor: combine= of two a", lambda a, b: matmul((a, a), (b, b), combine="silu")),
    ("bias and epilogue: one or the other", lambda a, b: matmul((a, a), (b, b), bias=BIAS, epilogue=FINISH)),
    (r"b\[1\] of \[64, 36\]", lambda a, b: matmul((a, a), (b, b[:, :36]))),
    ("rows is torch.float32 of shape", lambda a, b: matmul(a, b, rows=SCALE, bias=BIAS)),
    ("a tensor, or a tuple of them", lambda a, b: matmul(a, 3, order="lower")),
    ("a product with several parts is of two matrices", lambda a, b: matmul(a[None], b, order="lower")),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals_are_those_of_the_compiler_too(number: int) -> None:
    message, call = REFUSED[number]
    with pytest.raises((OperandError, PlanError, TensorError), match=message):
        call(A, B)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message):
        torch.compile(call, fullgraph=True, backend="eager")(A, B)


def test_other_refusals_name_the_operand() -> None:
    leaf = A.clone().requires_grad_()
    with pytest.raises(OperandError, match=r"a is lower triangular, and a\[0, 1\] is"):
        matmul(A, B, triangles=Triangles("lower"))
    aux = torch.zeros(136, 72, dtype=BF16).requires_grad_()
    with pytest.raises(TensorError, match="aux is a leaf that requires grad"):
        matmul(A, B, order="lower", epilogue=KEPT, given={"bias": BIAS, "aux": aux})
    with pytest.raises(TensorError, match="don't support automatic differentiation"):
        matmul(leaf, B, order="lower", out=torch.zeros(136, 72, dtype=BF16))
    eight = A.to(torch.float8_e4m3fn)
    with pytest.raises(TensorError, match="products of 8 bits have no gradient"):
        matmul(eight, B.T.contiguous().T.to(torch.float8_e4m3fn).requires_grad_(), order="lower")
    with pytest.raises(OperandError, match=r"rows\[3\] = 130: a has 100 rows"):
        matmul(A[:100], B, rows=ROWS, epilogue=FINISH, given={"bias": BIAS})
    with pytest.raises(OperandError, match="rows and prologue: the function reads i"):
        matmul(A, B, rows=ROWS, prologue=Prologue.of(lambda x, i, k, ops: x * i), epilogue=FINISH, given={"bias": BIAS})


def test_products_without_rows_are_empty() -> None:
    """As of an expert without tokens: no reduction has an element, and no row is added."""
    none, out, found = torch.zeros(0, dtype=torch.long), OUT.clone(), {"most": torch.zeros(0), "sums": torch.ones(72)}
    steps, left = Epilogue(RowReduce("max", "most"), ColumnReduce("sum", "sums")), A[:0].requires_grad_()
    c = matmul(A[:0], B, order="hilbert", epilogue=steps, given=found)
    assert c.shape == (0, 72) and not found["sums"].any()
    assert matmul(A[:0], B, add_rows=none, out=out) is out and torch.equal(out, OUT)
    for call in (
        lambda a: matmul(a, (B, UP), combine="silu", activation="relu"),
        lambda a: matmul(a, B, add_rows=none),
    ):
        for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
            assert function(A[:0]).shape == (0, 72)
            assert torch.autograd.grad(function(left).sum(), left)[0].shape == (0, 64)
    assert explain_matmul(A[:0], (B, UP), combine="silu", activation="relu").launches == 0


def test_parts_are_explained() -> None:
    how = explain_matmul(A, B, order="lower", config=TILE)
    assert how.why == "5 of 6 tiles, 83.3% of the grid" and how.copies == () and how.workspace == 0
    given = {"row_max": torch.zeros(136), "row_log_sum_exp": torch.zeros(136)}
    how = explain_matmul(A, drawn(64, 136), order="lower", epilogue=STATISTICS, given=given, config=TILE)
    told = explain_matmul(SQUARE, A, triangles=Triangles("lower"), config=TILE).why
    assert told.startswith("Triangles(a='lower', b=None): 66.7% of the K tiles")
    assert how.workspace == 3 * 136 * 2 * 4 and how.copies[-1].startswith("reductions: partial results")
    assert explain_matmul((A, A2), (B, B2), activation="relu").kernel.endswith("and a second pair of K = 16")


def test_flags_of_other_types_are_refused_after_equal_ones() -> None:
    """1 equals True, and a cache of texts took it."""
    a, b, rows = torch.ones(16, 16).bfloat16(), torch.ones(16, 16).bfloat16(), torch.arange(4)
    given = {"rows": rows, "bias": torch.ones(16).bfloat16()}
    assert matmul(a, b, copy_rows=True, **given).shape == (4, 16)
    with pytest.raises(OperandError, match="copy_rows: True or False"):
        matmul(a, b, copy_rows=1, **given)


def test_a_symmetric_product_behind_an_epilogue_has_gradients() -> None:
    x = torch.randn(70, 24, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    steps = Epilogue(Scale("s"), Bias(), Residual("f32"), Activation("tanh"))
    exact = x.detach().double().requires_grad_()
    bias, d = torch.linspace(-1, 1, 70), torch.linspace(-1, 1, 4900).reshape(70, 70)
    given = {"s": 0.2, "bias": bias, "d": d, "beta": 1.0}
    c = matmul(x, x.mT, order="symmetric", epilogue=steps, given=given, out_dtype=torch.float32)
    want = torch.tanh(0.2 * (exact @ exact.mT) + bias + d)
    weights = torch.arange(70.0)
    assert torch.allclose(c.double(), want, atol=1e-6)
    (found,) = torch.autograd.grad((c * weights).sum(), x)
    (expected,) = torch.autograd.grad((want * weights).sum(), exact)
    assert torch.linalg.norm(found.double() - expected) <= 1e-2 * torch.linalg.norm(expected)


def test_a_function_of_chosen_rows_is_of_the_first_pair_alone_and_once() -> None:
    """Rows are chosen before the function, also where `out` is a matrix that is read."""
    scaled = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")
    a, b, a2, b2 = ((4 * x).round() for x in (A[:100], B, A2, B2))
    s, more = torch.arange(100.0) % 3, 7 * torch.arange(136) % 100
    first = (a.double() * s.double()[:, None])[more] @ b.double()
    got = matmul((a, a2), (b, b2), rows=more, prologue=scaled, given={"s": s}, out_dtype=torch.float32)
    assert torch.equal(got.double(), first + a2.double() @ b2.double())
    out = torch.ones(136, 72)
    given = {"s": s, "d": out}
    plus = Epilogue(Residual("f32", beta=None))
    matmul(a, b, rows=more, prologue=scaled, epilogue=plus, given=given, out=out, out_dtype=torch.float32)
    assert torch.equal(out.double(), first + 1)
    how = explain_matmul((a, a2), (b, b2), rows=more, prologue=scaled, given={"s": s})
    assert how.copies == ("a: torch copies 136 chosen rows, 17408 bytes",) and how.workspace == 17408
    with pytest.raises(OperandError, match="rows and prologue: the function reads i"):
        matmul((a, a2), (b, b2), rows=more, prologue=Prologue.of(lambda x, i, k, ops: x * i))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_several_row_major_matrices_go_with_a_function_of_a(count: int) -> None:
    relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
    functions = {
        2: lambda p, q, ops: p - q,
        3: lambda p, q, r, ops: p - q + r,
        4: lambda p, q, r, t, ops: p - q + r - t,
    }
    several = [B + i for i in range(count)]
    found = matmul(A, tuple(several), combine=functions[count], prologue=relu, out_dtype=torch.float32)
    left = A.double().relu()
    assert torch.allclose(
        found.double(), sum((-1) ** i * (left @ x.double()) for i, x in enumerate(several)), rtol=1e-5, atol=1e-4
    )
