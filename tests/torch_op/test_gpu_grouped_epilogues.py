"""grouped_matmul with an epilogue of the caller's own on a GPU: against float64, its reductions against C's bits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, grouped_matmul, quantize
from layoutgemm.kernels.epilogue.chain import (
    Amax,
    Aux,
    Bias,
    ColumnReduce,
    Epilogue,
    Quantize,
    Residual,
    RowReduce,
    Scale,
)
from tests.torch_op.test_gpu_scaled_grouped import (
    BF16,
    E4M3,
    F16,
    F32,
    GROUPS,
    eight,
    ends_of,
    normal,
    off,
    scales,
    wide,
    without_waiting,
)

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]
STEPS = Epilogue(
    Scale("half"), Residual("f32", beta=None), RowReduce("max", "most"), ColumnReduce("max", "columns"), Amax()
)
FEW = Epilogue(Residual("f32", beta=None), ColumnReduce("max", "columns"), Amax())  # scales of blocks leave no more
BEHIND = 5  # rows of no group


def full(value: float, *shape: int) -> Any:
    return torch.full(shape, float(value), device="cuda")


def operands(steps: Epilogue, shape: tuple[int, ...], experts: int) -> dict[str, Any]:
    """The steps' operands; rows of no group keep 7."""
    found = {
        "half": 0.5, "d": torch.randn(shape, device="cuda"), "most": full(7, *shape[:-1]),
        "columns": full(7, experts, shape[-1]), "amax": full(0, 1),
    }  # fmt: skip
    return {operand.name: found[operand.name] for operand in steps.given}


def check_reductions(c: Any, own: dict[str, Any], parts: list[Any]) -> None:
    """Reductions see the values that an f32 C stores."""
    inside = torch.zeros(c.shape[:-1], dtype=torch.bool, device="cuda")
    for e, part in enumerate(parts):
        inside[part] = True
        of_group = c[part].reshape(-1, c.shape[-1])
        want = of_group.amax(0) if of_group.shape[0] else full(-torch.inf, c.shape[-1])
        assert torch.equal(own["columns"][e], want), e
    if "most" in own:
        assert torch.equal(own["most"][inside], c[inside].amax(-1)) and bool((own["most"][~inside] == 7).all())
    assert own["amax"].item() == c[inside].abs().amax().item()


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("form", ["offs", "offsets", "K"])
@pytest.mark.parametrize("kind", [BF16, F16])
def test_forms(kind: Any, form: str, name: str) -> None:
    torch.manual_seed(0)
    ends, total, experts, n, k = ends_of(GROUPS[name]), sum(GROUPS[name]), len(GROUPS[name]), 264, 136
    behind = BEHIND * (form == "offs")
    bounds = [0, *ends.tolist()]
    if form == "K":
        a, b = normal(total, k, kind=kind).mT, normal(total, n, kind=kind)
        shape, parts = (experts, k, n), [(e,) for e in range(experts)]
        left, right = a.double(), b.double()
        sums = torch.stack([left[:, s:e] @ right[s:e] for s, e in pairwise(bounds)])
        most = torch.stack([left[:, s:e].abs() @ right[s:e].abs() for s, e in pairwise(bounds)])
    else:
        a, b = normal(total + behind, k, kind=kind), normal(experts, n, k, kind=kind).mT
        shape, parts = (total + behind, n), [(slice(s, e),) for s, e in pairwise(bounds)]
        left, right = a.double(), b.double()
        sums, most = torch.zeros(shape, device="cuda").double(), torch.zeros(shape, device="cuda").double()
        for e, part in enumerate(parts):
            sums[part], most[part] = left[part] @ right[e], left[part].abs() @ right[e].abs()
    groups = {"offsets": torch.nn.functional.pad(ends, (1, 0)).long()} if form == "offsets" else {"offs": ends}
    own = operands(STEPS, shape, experts)
    with without_waiting():
        got = grouped_matmul(a, b, **groups, epilogue=STEPS, given=own, out_dtype=F32)
    inside = torch.cat([torch.ones(total), torch.zeros(behind)]).bool().cuda() if form != "K" else slice(None)
    want, bound = 0.5 * sums + own["d"].double(), most + own["d"].double().abs()
    assert off(got[inside], want[inside], bound[inside], total if form == "K" else k, False) <= 1
    assert form != "offs" or not got[total:].any()
    check_reductions(got, own, parts)
    again, out = operands(STEPS, shape, experts) | {"d": own["d"]}, full(9, *shape)
    assert grouped_matmul(a, b, **groups, epilogue=STEPS, given=again, out_dtype=F32, out=out) is out
    assert torch.equal(out[inside], got[inside]) and (form != "offs" or bool((out[total:] == 9).all()))
    assert all(torch.equal(again[x], own[x]) for x in ("most", "columns", "amax"))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("recipes", [("TensorWise", "TensorWise"), ("RowWise", "RowWise"),
                                     ("BlockWise1x128", "BlockWise128x128"), ("BlockWise1x128", "BlockWise1x128")],
                         ids=["tensors", "rows", "blocks", "blocks of columns"])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_scales_of_every_recipe(masked: bool, recipes: tuple[str, str], fast: bool) -> None:
    sizes, n, k = GROUPS["ragged"], 264, 400
    experts, total = len(sizes), sum(sizes) + BEHIND
    rows = max(sizes) + BEHIND
    front = (experts,) if masked else ()
    m = rows if masked else total
    a = eight(m, n, k, *front)[0]
    b = eight(m, n, k, experts)[1]
    sa, sb = scales(recipes[0], "a", m, k, *front), scales(recipes[1], "b", n, k, experts)
    left, right = a.double() * wide(recipes[0], "a", sa, m, k), b.double() * wide(recipes[1], "b", sb, n, k)
    steps = FEW if recipes[0].startswith("Block") else STEPS
    shape, bounds = (*front, m, n), [0, *ends_of(sizes).tolist()]
    parts: list[Any] = [(e, slice(size)) for e, size in enumerate(sizes)]
    parts = parts if masked else [(slice(s, e),) for s, e in pairwise(bounds)]
    own = operands(steps, shape, experts)
    groups = {"counts": torch.tensor(sizes, device="cuda")} if masked else {"offs": ends_of(sizes)}
    got = grouped_matmul(
        a, b, **groups, scale_a=sa, scale_b=sb, epilogue=steps, given=own, out_dtype=F32, use_fast_accum=fast
    )
    for e, part in enumerate(parts):
        x, y, d = left[part], right[e], own["d"][part].double()
        want, most = (1.0 if steps is FEW else 0.5) * (x @ y) + d, x.abs() @ y.abs() + d.abs()
        if len(want):
            assert off(got[part], want, most, k, fast and steps is STEPS) <= 1, e
    check_reductions(got, own, parts)


@pytest.mark.parametrize("rows", [20, 100, 150, 500, 2000])
@pytest.mark.parametrize("kind", [BF16, E4M3])
def test_chosen_tiles(kind: Any, rows: int) -> None:
    """One size for each configuration of groups: their results are those of the products without steps."""
    experts, n, k = 4, 2048, 4096
    total = experts * rows
    a, b = normal(total, k).to(kind), normal(experts, n, k).to(kind).mT
    steps, ends = Epilogue(RowReduce("max", "most"), ColumnReduce("max", "columns"), Amax()), ends_of((rows,) * experts)
    own = operands(steps, (total, n), experts)
    got = grouped_matmul(a, b, offs=ends, epilogue=steps, given=own, out_dtype=F32)
    check_reductions(got, own, [(slice(e * rows, (e + 1) * rows),) for e in range(experts)])
    assert torch.equal(got, grouped_matmul(a, b, offs=ends, out_dtype=F32))
    own = operands(steps, (total, n), experts)
    alone = Epilogue(*steps.steps, stores_c=False)
    found = grouped_matmul(a, b, offs=ends, epilogue=alone, given=own, out_dtype=F32)
    assert found.shape == (0,)
    check_reductions(got, own, [(slice(e * rows, (e + 1) * rows),) for e in range(experts)])


def test_chosen_rows_and_quantised_results() -> None:
    """Rows by index with scales, and C in 8 bits: the bits that `quantize` makes of the same float32."""
    sizes, n, k = GROUPS["ragged"], 256, 512
    experts, total = len(sizes), sum(sizes)
    a, b = eight(300, n, k)[0], eight(300, n, k, experts)[1]
    sa, sb = scales("RowWise", "a", 300, k), scales("RowWise", "b", n, k, experts)
    rows = torch.randint(0, 300, (total,), device="cuda")
    given = {"scale_a": sa[:, 0].contiguous(), "scale_b": sb, "rows": rows, "offs": ends_of(sizes)}
    made, plain = full(0, total, n // 128), grouped_matmul(a, b, **given, out_dtype=F32)
    got = grouped_matmul(a, b, **given, epilogue=Epilogue(Quantize()), given={"scales": made}, out_dtype=E4M3)
    values, of_values = quantize(plain)
    assert torch.equal(got.view(torch.uint8), values.view(torch.uint8)) and torch.equal(made, of_values)
    chosen = a.view(torch.uint8)[rows].view(E4M3)
    gathered = grouped_matmul(chosen, b, offs=ends_of(sizes), scale_a=sa[rows], scale_b=sb, out_dtype=F32)
    assert torch.equal(plain, gathered)


def test_graphs_and_what_is_written_beside() -> None:
    """Groups change between replays; a bias of each group, and a matrix that is written."""
    experts, m, n, k = 5, 333, 264, 136
    a, b, ends = normal(m, k), normal(experts, n, k).mT, ends_of((0, 100, 1, 120, 7))
    steps = Epilogue(Bias("n", "f32"), Aux("f32"), ColumnReduce("sum", "columns"), RowReduce("sum", "sums"))
    own = {
        "bias": torch.randn(experts, n, device="cuda"), "aux": full(7, m, n), "columns": full(7, experts, n),
        "sums": full(7, m),
    }  # fmt: skip
    grouped_matmul(a, b, offs=ends, epilogue=steps, given=own)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = grouped_matmul(a, b, offs=ends, epilogue=steps, given=own, out_dtype=F32)
    for sizes in ((0, 100, 1, 120, 7), (64, 0, 0, 200, 69), (0, 0, 0, 0, 0)):
        ends.copy_(ends_of(sizes))
        for name in ("aux", "columns", "sums"):
            own[name].fill_(7)
        graph.replay()
        last = sum(sizes)
        assert torch.equal(own["aux"][:last], got[:last]) and not got[last:].any()
        assert bool((own["aux"][last:] == 7).all()) and bool((own["sums"][last:] == 7).all())
        for e, (s, t) in enumerate(pairwise([0, *ends.tolist()])):
            torch.testing.assert_close(own["columns"][e].double(), got[s:t].double().sum(0), rtol=1e-4, atol=1e-3)
            want = a[s:t].double() @ b[e].double() + own["bias"][e].double()
            torch.testing.assert_close(got[s:t].double(), want, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(own["sums"][:last].double(), got[:last].double().sum(1), rtol=1e-4, atol=1e-3)


def test_memory_is_that_of_the_explanation() -> None:
    experts, m, n, k = 4, 1000, 512, 256
    a, b, ends = normal(m, k), normal(experts, n, k).mT, ends_of((250,) * experts)
    own = operands(STEPS, (m, n), experts)
    out = torch.empty(m, n, dtype=BF16, device="cuda")
    options = {"offs": ends, "epilogue": STEPS, "given": own, "out": out}
    grouped_matmul(a, b, **options)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    grouped_matmul(a, b, **options)
    told = explain_matmul(a, b, **options).workspace
    assert told <= torch.cuda.max_memory_allocated() - before <= told + 512  # in units of 512 bytes
