"""grouped_matmul(combine=): values, gradients, compilers, refusals, launches in the emulator."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutgemm import explain_matmul, grouped_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import Activation, Bias, ColumnReduce, Epilogue, RowReduce, Scale
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.plan import present
from layoutgemm.torch_op.operands.grouped import checked_groups, plan_of_groups
from layoutgemm.torch_op.scaled_grouped.scaled import BiasActivation
from tests import needs
from tests.torch_op.emulated_launches import launches_are_emulated
from tests.torch_op.host_launches import bare_launches
from tests.torch_op.test_prologue import compiled, near, slopes

OPERATOR = torch.ops.layoutgemm.combined_grouped_matmul
OFFSETS, ENDS, COUNTS = torch.tensor([0, 7, 7, 20]), torch.tensor([7, 7, 17]), torch.tensor([3, 0, 10])
ROWS, K, N, GROUPS = 20, 16, 8, 3
CHOSEN = torch.tensor([3, 3, 0, 19, 5])


def both(p: Any, q: Any, ops: Any, s: Any) -> Any:
    return p * ops.sigmoid(p) * q + s * q


def drawn(rows: int = ROWS, n: int = N, k: int = K, groups: int = GROUPS) -> list[torch.Tensor]:
    """a, two matrices of each group, and a bias of each group."""
    torch.manual_seed(0)
    matrices = [torch.randn(groups, k, n).bfloat16() for _ in range(2)]
    return [torch.randn(rows, k).bfloat16(), *matrices, torch.randn(groups, n)]


def product(a: torch.Tensor, b: torch.Tensor, b1: torch.Tensor, bias: torch.Tensor, **more: Any) -> torch.Tensor:
    more = more if {"offs", "offsets", "counts"} & set(more) else {"offsets": OFFSETS, **more}
    given = {"combine": both, "given": {"s": 0.5}, "bias": bias, "activation": "relu", **more}
    return grouped_matmul(a, (b, b1), **given)


def of_sums(p: torch.Tensor, q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(p * torch.sigmoid(p) * q + 0.5 * q + bias)


def by_torch(
    a: torch.Tensor, b: torch.Tensor, b1: torch.Tensor, bias: torch.Tensor, offsets: torch.Tensor = OFFSETS
) -> torch.Tensor:
    """Each group in float64."""
    parts = []
    for e, (first, end) in enumerate(pairwise(offsets.tolist())):
        x = a[first:end].double()
        parts.append(of_sums(x @ b[e].double(), x @ b1[e].double(), bias[e].double()))
    return torch.cat(parts)


def test_groups_of_rows_by_offsets_and_ends() -> None:
    operands = drawn()
    want = by_torch(*operands)
    assert torch.equal(product(*operands), want.bfloat16())
    got = product(*operands, offs=ENDS, out_dtype=torch.float32)
    assert not got[17:].any() and (got[:17] - want[:17]).abs().max() <= 1e-5 * want.abs().max()
    out = torch.full((ROWS, N), 7.0).bfloat16()
    assert product(*operands, offs=ENDS, out=out) is out
    assert torch.equal(out[:17], want.bfloat16()[:17]) and bool((out[17:] == 7).all())  # of no group
    a, b, b1, _ = operands
    silu = grouped_matmul(a, [b, b1], OFFSETS, combine="silu")
    gated = grouped_matmul(a, torch.cat([b, b1], -1), OFFSETS, activation="swiglu")
    assert torch.equal(silu, gated)
    ends = torch.tensor([0, 2, 2, 5])
    assert torch.equal(product(*operands, offsets=ends, rows=CHOSEN), product(a[CHOSEN], *operands[1:], offsets=ends))


def test_masked_groups() -> None:
    _, b, b1, bias = drawn()
    a = torch.randn(GROUPS, 10, K).bfloat16()
    want = of_sums(a.double() @ b.double(), a.double() @ b1.double(), bias[:, None].double()).bfloat16()
    got = product(a, b, b1, bias, counts=COUNTS)
    assert all(torch.equal(got[e, :count], want[e, :count]) for e, count in enumerate(COUNTS.tolist()))


@pytest.mark.parametrize("how", [{}, {"offs": ENDS}, {"rows": torch.arange(ROWS).flip(0)}])
def test_gradients_and_a_compiled_graph(how: dict[str, torch.Tensor]) -> None:
    operands = drawn()

    def ours(*operands: torch.Tensor) -> torch.Tensor:
        return product(*operands, **how)

    def plain(a: torch.Tensor, b: torch.Tensor, b1: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        offsets = OFFSETS if "offs" not in how else torch.cat([OFFSETS[:1], ENDS])
        return by_torch(a[how["rows"]] if "rows" in how else a, b, b1, bias, offsets)

    eager = slopes(ours, *operands)
    assert near(eager, slopes(plain, *operands))
    made = compiled(ours)
    assert torch.equal(made(*operands), ours(*operands)) and near(slopes(made, *operands), eager)

    def loss(a: torch.Tensor, b1: torch.Tensor) -> torch.Tensor:
        return ours(a, operands[1], b1, operands[3]).float().square().sum()

    assert near([*torch.func.grad(loss, argnums=(0, 1))(operands[0], operands[2])], [eager[0], eager[2]])


def test_operators_shapes_and_transforms() -> None:
    a, b, b1, bias = drawn()
    text = Combined.of(both, 2, ("s",)).json
    arguments = (a, [b, b1], OFFSETS, [0.5], text, "offsets", None, bias, "relu", torch.float32, "")
    assert set(torch.library.opcheck(OPERATOR.default, arguments).values()) == {"SUCCESS"}
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (a, b, b1, bias)]
        assert product(*fake, offsets=mode.from_tensor(OFFSETS)).shape == (ROWS, N)
    found = torch.vmap(product, in_dims=(0, None, None, None))(torch.stack([a, -a]), b, b1, bias)
    assert torch.equal(found[1], product(-a, b, b1, bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(product(a.float(), b.float(), b1.float(), bias), product(a, b, b1, bias))
    assert product(a[:0], b, b1, bias, offsets=torch.zeros(4).long()).shape == (0, N)
    empty = product(a[:, :0], b[:, :0], b1[:, :0], bias)
    assert torch.equal(empty[12], torch.relu(bias[2]).bfloat16())


@pytest.mark.parametrize(
    "part",
    [{"epilogue": Epilogue(Activation("relu"))}, {"prologue": Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))}],
)
def test_torch_func_derives_one_matrix_of_chosen_rows_too(part: dict[str, Any]) -> None:
    """Indices that a transform does not wrap are checked in spite of it."""
    a, b, *_ = drawn()
    ends, outside = torch.tensor([0, 2, 2, 5]), CHOSEN.clone()

    def loss(a: torch.Tensor, rows: torch.Tensor = CHOSEN) -> torch.Tensor:
        return grouped_matmul(a, b, ends, rows=rows, **part).float().square().sum()

    leaf = a.clone().requires_grad_()
    loss(leaf).backward()
    assert leaf.grad is not None and near([torch.func.grad(loss)(a)], [leaf.grad])
    outside[1] = ROWS
    with pytest.raises(LayoutError, match=r"rows\[1\] = 20"):
        torch.func.grad(lambda a: loss(a, outside))(a)


MORE, RELU = torch.ones(GROUPS, K, N).bfloat16(), Epilogue(Activation("relu"))
STEPS = Epilogue(Bias(dtype="f32"), Activation("relu"), RowReduce("sum", "of_rows"), ColumnReduce("max", "of_columns"))


def with_steps(
    a: torch.Tensor, b: torch.Tensor, b1: torch.Tensor, bias: torch.Tensor, **more: Any
) -> tuple[torch.Tensor, ...]:
    """C, sums of its rows and largest values of the groups' columns; -1 where nothing is written."""
    rows = (GROUPS, a.shape[1]) if "counts" in more else (len(more.get("rows", a)),)
    found = {"of_rows": torch.full(rows, -1.0), "of_columns": torch.full((GROUPS, N), -1.0)}
    more |= {"bias": None, "activation": None, "epilogue": STEPS, "given": {"s": 0.5, "bias": bias, **found}}
    if not {"offs", "offsets", "counts"} & set(more):
        more["offsets"] = OFFSETS
    return grouped_matmul(a, (b, b1), combine=both, **more), *found.values()


def steps_by_torch(a: torch.Tensor, b: torch.Tensor, b1: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = by_torch(a, b, b1, bias)
    columns = [x.amax(0) if len(x) else x.new_full((N,), -torch.inf) for x in wide.tensor_split(OFFSETS[1:-1])]
    return wide, wide.sum(1), torch.stack(columns)


def test_an_epilogue_follows_the_function() -> None:
    operands = drawn()
    wide = steps_by_torch(*operands)
    exact = with_steps(*operands, out_dtype=torch.float32)
    for got, want in zip(exact, wide, strict=True):
        torch.testing.assert_close(got.double(), want.double())
    *masked, largest = with_steps(operands[0][:9].view(3, 3, K), *operands[1:], counts=torch.tensor([2, 0, 1]))
    assert masked[1][0, 2] == masked[1][1, 0] == -1 and (largest[1] == -torch.inf).all() and (largest[0] >= 0).all()
    assert with_steps(*operands, rows=CHOSEN, offsets=torch.tensor([0, 2, 2, 5]))[0].shape == (5, N)
    traced = compiled(lambda *x: with_steps(*x, out_dtype=torch.float32))
    assert all(torch.equal(x, y) for x, y in zip(traced(*operands), exact, strict=True))

    def loss(call: Any, options: dict[str, Any]) -> Any:
        return lambda *x: torch.stack([y[y.isfinite()].square().sum().sqrt() for y in call(*x, **options)])

    ours, torchs = loss(with_steps, {"out_dtype": torch.float32}), loss(steps_by_torch, {})
    eager = slopes(ours, *operands)
    assert near(eager, slopes(torchs, *operands)) and near(slopes(compiled(ours), *operands), eager)
    assert near([torch.func.grad(lambda x: ours(x, *operands[1:]).square().sum())(operands[0])], eager[:1])


def test_products_with_scales_of_their_own_are_combined() -> None:
    """One kernel applies scales of blocks, torch those of rows."""
    torch.manual_seed(0)
    a, *b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((ROWS, 256), *[(GROUPS, N, 256)] * 2))
    scale_a, *scales = torch.rand(ROWS, 2), *torch.rand(2, GROUPS, 1, 2)
    more = {"scale_a": scale_a, "scale_b": tuple(scales), "combine": both, "given": {"s": 0.5}, "offs": ENDS}
    more |= {"bias": torch.randn(GROUPS, N), "activation": "relu"}
    b = [x.mT for x in b]

    def wide(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return grouped_matmul(a, x, offs=ENDS, scale_a=scale_a, scale_b=scale, out_dtype=torch.float32)

    each = [wide(x, scale) for x, scale in zip(b, scales, strict=True)]
    group = torch.bucketize(torch.arange(ROWS), ENDS, right=True).clamp(max=2)
    want = torch.where(torch.arange(ROWS)[:, None] < 17, of_sums(*each, more["bias"][group]), 0).bfloat16()
    torch.testing.assert_close(grouped_matmul(a, tuple(b), **more), want)
    want = grouped_matmul(a, tuple(b), **more)
    kept = torch.full_like(want, 7)
    assert torch.equal(grouped_matmul(a, tuple(b), out=kept, **more)[17:], torch.full_like(want[17:], 7))
    told = explain_matmul(a, tuple(b), **more)
    assert told.launches == 1 and told.copies == (f"scale_b: of 2 b, one behind the other, {16 * GROUPS} bytes",)
    rows = {**more, "scale_a": scale_a[:, :1], "scale_b": (torch.rand(GROUPS, 1, N),) * 2}
    chosen = {**more, "rows": torch.arange(ROWS).flip(0)}  # one operator to the compiler
    found = compiled(lambda a, *b: grouped_matmul(a, b, out=kept, **chosen))(a, *b)
    assert found is kept and torch.equal(found[:17], grouped_matmul(a, tuple(b), **chosen)[:17])
    assert explain_matmul(a, tuple(b), **rows).launches == 2 and grouped_matmul(a, tuple(b), **rows).shape == (ROWS, N)
    to = torch.randperm(ROWS)
    assert torch.equal(grouped_matmul(a, tuple(b), out_rows=to, **more)[to], want)


@pytest.mark.parametrize("more", [{"offs": ENDS, "bias": True}, {"combine": both, "epilogue": True}])
def test_rows_are_weighed_and_placed_beside_other_parts(more: dict[str, Any]) -> None:
    """Rows of no group keep what `out` has. Gradients and compiled code are those of the parts in turn."""
    a, b, b1, bias = drawn()
    to, weights = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)), torch.linspace(0.5, 2, ROWS)
    groups = {} if "offs" in more else {"offsets": OFFSETS}
    more = {**more, **groups} | {name: x for name, x in (("bias", bias), ("epilogue", RELU)) if name in more}
    matrices, given = ((b, b1), {"given": {"s": 0.5}}) if "combine" in more else (b, {})
    rows = 17 if "offs" in more else ROWS

    def in_turn(a: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        c = grouped_matmul(a, matrices, **more, **given, out_dtype=torch.float32)
        first = torch.full((ROWS + 2, N), 7.0).bfloat16()
        return first.index_copy(0, to[:rows], (c * weights[:, None]).bfloat16()[:rows])

    def placed(a: torch.Tensor, weights: torch.Tensor, out: Any = None) -> torch.Tensor:
        return grouped_matmul(a, matrices, **more, **given, out_rows=to, row_weights=weights, out=out)

    want, out = in_turn(a, weights), torch.full((ROWS + 2, N), 7.0).bfloat16()
    assert placed(a, weights, out) is out and torch.equal(out, want)
    found = placed(a, weights)
    assert torch.equal(found[to[:rows]], want[to[:rows]]) and not found[to[rows:]].any()
    assert torch.equal(compiled(placed)(a, weights), found)
    assert near(slopes(placed, a, weights), slopes(in_turn, a, weights))
    for wrong, text in ((to.clamp(min=2), "are both 2"), (to + 1, "20: the result has 20 rows")):
        with pytest.raises(LayoutError, match=text):
            grouped_matmul(a, matrices, **more, **given, out_rows=wrong)
    assert "torch weighs and places its rows" in explain_matmul(
        a, matrices, **more, **given, out_rows=to, row_weights=weights
    ).kernel  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scale_a": torch.ones(ROWS, 1)}, "scale_b is a NoneType: with combine= a tuple of 2, the scales of each b"),
        ({"scale_b": (torch.ones(1),)}, "scale_b is a tuple of 1: with combine= a tuple of 2"),
        ({"scale_b": (torch.ones(1),) * 2, "epilogue": RELU}, "scales and combine: torch combines these products"),
        ({"scale_b": (torch.ones(1),) * 2, "activation": "swiglu"}, "activation and combine: the function of the"),
        ({"epilogue": 3}, "epilogue is a int, not a"),
        ({"epilogue": RELU, "bias": torch.ones(N)}, "bias and epilogue: one or the other"),
        ({"epilogue": RELU, "activation": "swiglu"}, "activation and combine: the function of the products has the"),
        ({"epilogue": RELU, "given": {"s": 0.5, "t": 1.0}}, "got an unexpected keyword argument 't'"),
        ({"epilogue": RELU, "combine": lambda p, q, ops, b1: p, "given": {"b1": 1.0}}, "a number of the function is"),
        ({"epilogue": RELU, "b": (MORE, MORE[:2])}, "b[1] is torch.bfloat16 of shape [2, 16, 8]"),
        ({"epilogue": RELU, "prologue": 3}, "prologue is a int: a Prologue"),
        ({"out_rows": CHOSEN}, "out_rows is torch.int64 of shape [5]: int32 or int64 of [20], a row for each row of"),
        ({"row_weights": torch.ones(3)}, "row_weights is torch.float32 of shape [3]: float32 of [20]"),
        ({"combine": None}, "b is a tuple of matrices: combine= says what becomes of their products"),
        ({"offs": ENDS}, "offsets and offs: groups are said by one of"),
        ({"offsets": None}, "combine: of groups of rows and of masked ones, and these are"),
        ({"given": {}}, "missing a required argument: 's'"),
        ({"given": {"s": "2"}}, "s"),
        ({"activation": "swiglu"}, "activation and combine: the function of the products has the gate"),
        ({"b": (MORE,)}, "b is 1 matrices: combine= takes a tuple of 2 to 4"),
        ({"b": (MORE, MORE[:2])}, "b[1] is torch.bfloat16 of shape [2, 16, 8]"),
        ({"combine": lambda p, q, ops, bias: p, "given": {"bias": 1.0}}, "a number of the function is named bias"),
        ({"copy_rows": True}, "copy_rows: of a product with rows="),
        ({"copy_rows": False, "rows": CHOSEN}, "copy_rows: False, and rows of a product of several b are copied"),
        ({"rows": CHOSEN.float()}, "rows is torch.float32 of 1 dimensions"),
        ({"config": 3}, "config"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    a, *_ = drawn()
    options: dict[str, Any] = {"offsets": OFFSETS, "combine": both, "given": {"s": 0.5}, "b": (MORE, MORE), **more}
    several = options.pop("b")
    batch = a.expand(GROUPS, ROWS, K) if options["offsets"] is None else a
    with pytest.raises(LayoutError) as found:
        grouped_matmul(batch, several, **options)
    assert message in str(found.value)
    if options["combine"] is not None and options["offsets"] is not None:  # else it is matmul's
        with pytest.raises(LayoutError) as told:
            explain_matmul(batch, several, **options)
        assert message in str(told.value)
    with pytest.raises(RuntimeError) as traced:
        compiled(lambda a, *b: grouped_matmul(a, b, **options))(batch, *several)
    assert message in str(traced.value)


# ------------------------------------------------------------------------------------------------------- without a GPU


def test_the_explanation_says_what_is_copied() -> None:
    a, b = torch.empty(4096, 512).bfloat16(), torch.empty(8, 1024, 512).bfloat16().mT
    ends = torch.arange(512, 4097, 512)
    told = explain_matmul(a, (b, b.contiguous()), combine="silu", offs=ends)
    assert told.copies[0].startswith("b[1]: ") and told.workspace == 8 * 1024 * 512 * 2
    assert told.why.startswith("one launch for all groups, whose ends the kernel reads; 512 rows a group on average")
    assert "2 matrices B combined" in told.kernel and "rows in 8 group(s)" in told.kernel
    masked = explain_matmul(a.view(8, 512, 512), (b, b), combine="silu", counts=torch.ones(8).long(), expected_rows=64)
    assert masked.copies == () and "expected_rows = 64: tiles of" in masked.why


@pytest.mark.parametrize("sums", [2, 3, 4])
@pytest.mark.parametrize("order", ["row", "col"])
def test_tiles_hold_whole_lines_of_each_matrix(sums: int, order: str) -> None:
    """A plan for any sizes: of few rows and many, of narrow results and wide ones."""
    how = Combined.of(lambda *x: x[0] * x[1], sums)
    for m, n, k, groups in ((20, 8, 16, 3), (300, 2048, 512, 4), (9000, 96, 512, 64), (4096, 4096, 4096, 8)):
        a = torch.empty(m, k, dtype=torch.float16)
        b = torch.empty(groups, *((k, n) if order == "row" else (n, k)), dtype=torch.float16)
        b = b if order == "row" else b.mT
        for kind in (None, torch.float32):
            ends = torch.full((groups,), m)
            of = checked_groups(a, [b] * sums, ends, "offs", how, None, BiasActivation(), None, None, kind)
            plan, _ = plan_of_groups(of, None, True)
            assert plan.b.order == order and plan.sums == sums and plan.check()


@pytest.mark.parametrize("said", ["offsets", "offs", "counts", "counts of one"])
def test_a_launch_is_kept(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, b1, _ = drawn(64, 64, 64)
    bias, groups = torch.ones(64), {"offsets": torch.tensor([0, 10, 10, 64]), "offs": torch.tensor([10, 10, 64])}
    if "counts" in said:
        experts, said = (1 if "one" in said else 3), "counts"
        groups["counts"], b, b1 = torch.tensor([1, 0, 64][-experts:]), b[:experts], b1[:experts]
        a = torch.randn(experts, 64, 64).bfloat16()
    of = checked_groups(a, (b, b1), groups[said], said, both, {"s": 0.5}, BiasActivation(bias), None, None, None)
    plan, _ = plan_of_groups(of, None, True)
    assert plan.check()
    want = {"a": a, "b": b, "b1": b1, "bias": bias, {"offs": "ends"}.get(said, said): groups[said]}
    numbers = {"ldb1": 64, "m": 64, "n": 64, "k": 64} | ({"stride_b1": 64 * 64} if len(b) > 1 else {})
    with bare_launches(monkeypatch) as noted:
        found = []
        for s in (0.5, 0.5, 2.0):
            noted.arguments.clear()
            noted.allocated = 0
            grouped_matmul(a, (b, b1), **{said: groups[said]}, combine=both, given={"s": s}, bias=bias)
            (made,) = noted.arguments
            values = dict(zip(plan.parameters, made, strict=False))
            assert {name: values[name] for name in want} == {name: x.data_ptr() for name, x in want.items()}
            assert {name: values[name] for name in numbers} == numbers
            found.append(values["s"])
        assert noted.allocated == 1  # the last calls are kept ones
        assert found[0] == found[1] != found[2]


def test_a_launch_with_an_epilogue_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes another number of the function."""
    a, b, b1, _ = drawn(64, 64, 64)
    ends, found, bias = torch.tensor([10, 10, 64]), [], torch.ones(64)
    steps = Epilogue(Bias(dtype="f32"), Scale("t"))
    with bare_launches(monkeypatch) as noted:
        for s, t in ((0.5, 1.0), (0.5, 1.0), (2.0, 3.0)):
            noted.arguments.clear()
            noted.allocated = 0
            given = {"s": s, "t": t, "bias": bias}
            grouped_matmul(a, (b, b1), offs=ends, combine=both, given=given, epilogue=steps)
            found.append(noted.arguments[0])
        assert noted.allocated == 1
    own = [[x for place, x in enumerate(arguments) if place != 2] for arguments in found]  # without C
    assert own[0] == own[1] and sum(x != y for x, y in zip(own[1], own[2], strict=True)) == 2


@pytest.mark.dsl
def test_the_kernel_with_an_epilogue_in_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.module("cutlass")
    operands = drawn()
    want = with_steps(*operands, offs=ENDS)
    made = launches_are_emulated(monkeypatch)
    got = with_steps(*operands, offs=ENDS)
    assert [plan.sums for plan in made] == [2] and (got[1][17:] == -1).all()
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0.01, atol=0.01)


@pytest.mark.dsl
@pytest.mark.parametrize("how", ["ends, rows", pytest.param("masked", marks=pytest.mark.slow)])
def test_the_kernel_in_the_emulator(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With matrices that lie otherwise than the first, and that are copied."""
    needs.module("cutlass")
    a, b, b1, bias = drawn()
    b1 = b1.mT.contiguous().mT
    want, options = product(a, b, b1, bias, offs=ENDS), {"offs": ENDS}
    inside = torch.arange(ROWS)[:, None] < 17
    if how == "masked":
        a = torch.randn(GROUPS, 10, K).bfloat16()
        options, inside = {"counts": COUNTS}, (torch.arange(10) < COUNTS[:, None])[..., None]
        want = product(a, b, b1, bias, **options)
    else:
        options |= {"rows": torch.arange(ROWS).flip(0)}
        a = a.flip(0).contiguous()
    made = launches_are_emulated(monkeypatch)
    got = product(a, b, b1, bias, **options)
    (plan,) = made
    assert plan.sums == 2
    torch.testing.assert_close(torch.where(inside, got, 0), torch.where(inside, want, 0), rtol=0.01, atol=0.01)
    assert how == "masked" or not got[17:].any()


def test_sums_of_rows_and_a_prologue_go_with_all_of_it() -> None:
    """Rows are added behind the product, and torch computes the function of a first. Values and gradients."""
    a, b, b1, bias = [x.requires_grad_() for x in drawn()]
    scale, to = (torch.rand(K) + 0.5).requires_grad_(), torch.tensor([1, 3, 1, 0] * 5)
    function, sums = Prologue.of(lambda x, i, k, ops, w: x * w, w="k"), torch.empty(ROWS)
    given = {"prologue": function, "given": {"s": 0.5, "w": scale}, "offsets": OFFSETS}
    wanted = [x.detach().double().requires_grad_() for x in (a, b, b1, bias, scale)]
    product_of = by_torch(wanted[0] * wanted[4], *wanted[1:4])
    want = torch.zeros(ROWS, N, dtype=torch.float64).index_add(0, to, product_of)
    for ordered in (True, False):
        value = product(a, b, b1, bias, add_rows=to, ordered=ordered, **given)
        assert near([value], [want])
    value.square().sum().backward()
    want.square().sum().backward()
    assert near([present(x.grad) for x in (a, b, b1, bias, scale)], [present(x.grad) for x in wanted])
    steps = Epilogue(Bias(), Activation("relu"), RowReduce("sum", "sums"))
    with torch.no_grad():
        more = {**given, "given": {**given["given"], "bias": bias, "sums": sums}}
        value = grouped_matmul(a, (b, b1), combine=both, add_rows=to, epilogue=steps, **more)
    assert near([value, sums], [want, product_of.sum(1)])
    told = explain_matmul(a, (b, b1), combine=both, bias=bias, **given, add_rows=to)
    assert told.kernel.startswith("torch computes a's function, then Sm90Plan") and "rows are added" in told.kernel
