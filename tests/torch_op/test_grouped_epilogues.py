"""grouped_matmul with an epilogue of the caller's own: on the CPU, by its kernels in the emulator, and refusals."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
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
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.torch_op import tuning
from layoutgemm.torch_op.scaled_grouped import grouped_epilogue, kept
from tests.torch_op.epilogue_fuzz import faults
from tests.torch_op.host_launches import bare_launches
from tests.torch_op.test_operator import BF16, F32, emulated, integers
from tests.torch_op.test_scaled_kernels import powers, spread

E4M3 = torch.float8_e4m3fn
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
SIZES, BEHIND, N, K = (30, 0, 33, 1), 6, 48, 144
ENDS = torch.tensor(SIZES).cumsum(0)
M = int(ENDS[-1]) + BEHIND
OF_C = {"out_rows": torch.arange(M), "add_rows": torch.arange(M), "row_weights": torch.ones(M)}
STEPS = Epilogue(
    Scale("half"), Residual("f32", beta=None), Activation("relu"), RowReduce("sum", "sums"),
    ColumnReduce("sum", "total"), Amax(),
)  # fmt: skip
FEW = Epilogue(
    Residual("f32", beta=None), ColumnReduce("sum", "total"), Amax()
)  # scales of blocks leave few parameters
PLAIN = ("offs", "offsets", "counts", "K", "batch", "rows", "counts, rows", "counts, rows of one")
SCALED = ("tensors", "by row", "blocks", "counts, by row", "counts, blocks", "rows, by row")
EMULATED = ("offs", "K")


class Case:
    """A call's arguments, its product in float64, and each group's index in that."""

    def __init__(self, name: str):
        torch.manual_seed(0)
        self.few = "blocks" in name or name == "rows, by row"
        kind = BF16 if name in PLAIN else E4M3
        self.given: dict[str, Any] = {}
        of_a, of_b = None, None
        if name == "K":
            bounds = [0, 70, 70, 71, K]
            a, b = integers(K, 72)[:, :M].T, integers(K, N)
            self.given = {"a": a, "b": b, "offs": torch.tensor(bounds[1:])}
            self.wide = torch.stack([a[:, s:e].double() @ b[s:e].double() for s, e in pairwise(bounds)])
            self.parts = [(e,) for e in range(4)]
            return
        masked = name.startswith("counts") or name == "batch"
        a, b = integers(*[4] * masked, M, K, dtype=kind), integers(4, N, K, dtype=kind).mT
        of_rows = name.startswith("rows")
        rows = torch.randint(0, M, (M,), dtype=torch.int32)
        left, right = a.double(), b.double()
        front = a.shape[:-1]
        if "blocks" in name:
            of_a, of_b = powers(*front, 2), powers(4, 1, 2)
            left, right = left * spread(of_a, 1, M, K), right * spread(of_b, 128, N, K).mT
        elif "by row" in name:
            of_a, of_b = powers(*front), powers(4, N)
            left, right = left * of_a.double()[..., None], right * of_b.double()[:, None]
        elif name == "tensors":
            of_a, of_b = torch.tensor([0.5]), torch.tensor([2.0])
        if "counts, rows" in name:
            rows = torch.randint(0, M, (4, M), dtype=torch.int32)
            a = a[0] if name.endswith("one") else a
            self.given = {"rows": rows}
            left = torch.stack([x[i.long()] for x, i in zip(a.double().expand(4, M, K), rows)])
        self.given |= {"a": a, "b": b}
        if of_a is not None:
            self.given |= {"scale_a": of_a, "scale_b": of_b, "out_dtype": F32}
        if masked:
            self.wide = left @ right
            counts = [M] * 4 if name == "batch" else list(SIZES)
            self.parts: list[Any] = [(e, slice(count)) for e, count in enumerate(counts)]
            self.given |= {} if name == "batch" else {"counts": torch.tensor(SIZES, dtype=torch.int32)}
            return
        bounds = [0, *ENDS.tolist()]
        if of_rows:
            self.given["rows"], left = rows, left[rows.long()]
        if name == "offsets":
            bounds[-1] = M
            self.given["offsets"] = torch.tensor(bounds, dtype=torch.int32)
        else:
            self.given["offs"] = ENDS.int()
        self.parts = [(slice(s, e),) for s, e in pairwise(bounds)]
        self.wide = torch.zeros(M, N, dtype=torch.float64)
        for e, part in enumerate(self.parts):
            self.wide[part] = left[part] @ right[e]

    @property
    def steps(self) -> Epilogue:
        """The steps that such a product has parameters for."""
        return FEW if self.few else STEPS

    def operands(self) -> dict[str, Any]:
        """The steps' operands; outputs hold numbers that rows of no group keep."""
        of_rows = self.wide.shape[:-1]
        found = {
            "half": 0.5, "d": integers(*self.wide.shape, dtype=F32), "sums": torch.full(of_rows, 7.0),
            "total": torch.full((4, N), 7.0), "amax": torch.zeros(1),
        }  # fmt: skip
        return {operand.name: found[operand.name] for operand in self.steps.given}

    def check(self, **options: Any) -> None:
        """Every result is exact, and rows of no group are left."""
        of = self.operands()
        before = {name: x.clone() for name, x in of.items() if name == "sums"}
        value = self.wide + of["d"] if self.few else torch.relu(0.5 * self.wide + of["d"])
        out = torch.full(self.wide.shape, 9.0, dtype=F32)
        given = {**self.given, **options, "epilogue": self.steps, "out_dtype": F32}
        got = grouped_matmul(**given, given=of)
        assert grouped_matmul(**given, given=self.operands() | {"d": of["d"]}, out=out) is out
        inside = torch.zeros(self.wide.shape[:-1], dtype=torch.bool)
        for e, part in enumerate(self.parts):
            inside[part] = True
            assert torch.equal(of["total"][e].double(), value[part].sum(-2))
        assert torch.equal(got[inside].double(), value[inside]) and torch.equal(out[inside], got[inside])
        assert (out[~inside] == 9).all() and ("counts" in given or not got[~inside].any())
        assert of["amax"].item() == value[inside].abs().max()
        if not self.few:
            assert torch.equal(of["sums"][inside].double(), value.sum(-1)[inside])
            assert torch.equal(of["sums"][~inside], before["sums"][~inside])


@pytest.mark.parametrize("name", [*PLAIN, *SCALED])
def test_the_definition_on_the_cpu(name: str) -> None:
    Case(name).check()


@pytest.mark.dsl
@pytest.mark.parametrize(
    "name", [x if x in EMULATED else pytest.param(x, marks=pytest.mark.slow) for x in (*PLAIN, *SCALED)]
)
def test_by_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated(monkeypatch) as calls:
        Case(name).check(config=SMALL)
        assert len(calls) == 2


@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=pytest.mark.dsl)])
def test_vectors_of_each_group_and_no_c(by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias and a matrix that is written, and results alone."""
    made = Case("offs")
    bias, kept = integers(4, N, dtype=F32), torch.full((M, N), 7.0)
    last = int(ENDS[-1])
    wide = made.wide[:last] + bias.double()[torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))]
    best = {"best_value": torch.zeros(4, N), "best_index": torch.zeros(4, N).int()}
    steps = Epilogue(Bias("n", "f32"), Aux("f32"), ColumnReduce("argmax", "best"), stores_c=False)
    options = {"config": SMALL} if by_kernel else {}
    with emulated(monkeypatch) if by_kernel else nullcontext():
        got = grouped_matmul(**made.given, epilogue=steps, given={"bias": bias, "aux": kept, **best}, **options)
    assert got.shape == (0,) and got.dtype == BF16
    assert torch.equal(kept[:last].double(), wide) and (kept[last:] == 7).all()
    for e, (part,) in enumerate(made.parts):
        if part.start < part.stop:
            assert torch.equal(best["best_value"][e].double(), wide[part].amax(0))
            assert torch.equal(best["best_index"][e].long(), wide[part].argmax(0) + part.start)
        else:
            assert (best["best_value"][e] == -torch.inf).all()


@pytest.mark.dsl
@pytest.mark.slow
def test_one_group_and_quantised_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, 70, K), integers(1, N, K).mT
    sums, out = torch.zeros(1, 70), torch.full((1, 70, N), 9.0)
    steps, counts = Epilogue(RowReduce("max", "most")), torch.tensor([40])
    want = a[0].double() @ b[0].double()
    ends = torch.tensor([0, 30, 30, 70])
    several = integers(3, 256, K).mT
    with emulated(monkeypatch):
        grouped_matmul(a, b, counts=counts, epilogue=steps, given={"most": sums}, out=out, out_dtype=F32, config=SMALL)
        assert torch.equal(out[0, :40].double(), want[:40]) and (out[0, 40:] == 9).all()
        assert torch.equal(sums[0, :40].double(), want[:40].amax(1)) and not sums[0, 40:].any()
        along, whole = torch.zeros(1, 70), a[0]
        got = grouped_matmul(
            whole, b[0], offs=torch.tensor([100]), epilogue=steps, given={"most": along}, out_dtype=F32, config=SMALL
        )
        want = whole[:, :100].double() @ b[0, :100].double()
        assert torch.equal(got[0].double(), want) and torch.equal(along[0].double(), want.amax(1))
        scales = torch.zeros(70, 2)
        got = grouped_matmul(
            whole, several, ends, epilogue=Epilogue(Quantize()), given={"scales": scales}, out_dtype=E4M3,
            expected_rows=None,
        )  # fmt: skip
    exact = torch.cat([whole[s:e].double() @ several[i].double() for i, (s, e) in enumerate(pairwise(ends.tolist()))])
    amax = exact.float().reshape(70, 2, 128).abs().amax(-1).clamp_min(1e-10)
    value = exact.float().reshape(70, 2, 128) * (1 / amax * 448)[..., None]
    assert torch.equal(scales, amax / 448)
    assert torch.equal(got.view(torch.uint8), value.reshape(70, 256).to(E4M3).view(torch.uint8))


@pytest.mark.parametrize("name", ["offs", "counts", "K", "by row", "rows, by row"])
def test_explanations_count_what_is_allocated(name: str) -> None:
    made = Case(name)
    how = explain_matmul(**made.given, epilogue=made.steps, given=made.operands(), config=SMALL)
    columns = (M // 16 + 4) * N if name not in ("counts", "K") else 4 * -(-M // 16) * N
    rows = 0 if made.few else M if name not in ("counts", "K") else 4 * M
    partial, copied = 4 * (rows + columns), [text for text in how.copies if "chosen rows" in text]
    assert f"reductions: partial results of the tiles, {partial} bytes" in how.copies
    assert how.launches == 1 and how.why.startswith("one launch for all groups")
    assert len(how.copies) == 1 + len(copied) and len(copied) == 2 * (name == "rows, by row")
    more = sum(int(text.split(", ")[-1].removesuffix(" bytes")) for text in copied)
    assert how.workspace == partial + more


@pytest.mark.dsl
@pytest.mark.parametrize("k", [0, K])
def test_sizes_of_zero(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty sum is 0, and the steps follow; without rows columns have the results of no element."""
    steps, bias = Epilogue(Bias("n", "f32"), ColumnReduce("sum", "total"), RowReduce("max", "most")), torch.ones(N)
    ends, total = torch.tensor([2, 2, 5]), torch.full((3, N), 7.0)
    with emulated(monkeypatch):
        for rows in (0, 6):
            if rows and k:
                continue
            most = torch.full((rows,), 7.0)
            given = {"bias": bias, "total": total, "most": most}
            a, b = torch.zeros(rows, k).bfloat16(), torch.zeros(3, k, N).bfloat16()
            got = grouped_matmul(a, b, offs=ends if rows else ends * 0, epilogue=steps, given=given, config=SMALL)
            assert got.shape == (rows, N) and (got[:5] == 1).all() and not got[5:].any()
            assert (most[:5] == 1).all() and (most[5:] == 7).all()
            sizes = torch.tensor([[2.0], [0.0], [3.0]]) if rows else torch.zeros(3, 1)
            assert torch.equal(total, sizes.expand(3, N))
    given = {"bias": torch.ones(0), "total": torch.zeros(3, 0), "most": torch.full((6,), 7.0)}
    a, b = torch.zeros(6, 8).bfloat16(), torch.zeros(3, 8, 0).bfloat16()
    assert grouped_matmul(a, b, offs=ends, epilogue=steps, given=given).shape == (6, 0)
    assert given["most"].tolist() == [-torch.inf] * 5 + [7.0]


def test_plans_are_kept_until_a_product_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = Case("offs"), []
    real = grouped_epilogue.plan_of
    monkeypatch.setattr(grouped_epilogue, "plan_of", lambda *x: asked.append(x) or real(*x))
    monkeypatch.setattr(tuning.tuned, "store", lambda *x: None)
    kept.PLANS.clear()
    with bare_launches(monkeypatch):
        for steps, plans in ((STEPS, 1), (STEPS, 1), (FEW, 2), (STEPS, 2)):
            given = {name: x for name, x in made.operands().items() if name in {y.name for y in steps.given}}
            grouped_matmul(**made.given, epilogue=steps, given=given)
            assert len(asked) == plans
        tuning._keep("", "", Sm90Choice(SMALL), (1.0, 1.0, 1.0))
        grouped_matmul(**made.given, epilogue=STEPS, given=made.operands())
        assert len(asked) == 3
    kept.PLANS.clear()


def test_every_size_has_a_tile_for_groups_of_columns() -> None:
    steps, scales = Epilogue(Quantize()), torch.zeros(4096, 2)
    for m in (64, 600, 1000, 4096):
        for kind in (BF16, E4M3):
            a, b = torch.empty(m, 256, dtype=kind), torch.empty(4, 256, 256, dtype=kind).mT
            offs = torch.tensor([0, m // 2, m, m])
            told = explain_matmul(a, b, offs=offs, epilogue=steps, given={"scales": scales[:m]}, out_dtype=E4M3)
            assert told.kernel.startswith("Sm90Plan")


@pytest.mark.dsl
@pytest.mark.slow
def test_random_epilogues_are_those_of_the_cpu() -> None:
    assert list(faults(0, 12)) == []


def test_refusals_name_the_operand() -> None:
    made = Case("offs")
    rows = Epilogue(RowReduce("sum", "sums"))
    sums = {"sums": torch.zeros(M)}
    columns = {"a": made.given["b"].mT, "b": made.given["a"].mT}
    for text, epilogue, own, more in (
        ("bias and epilogue", rows, sums, {"bias": torch.zeros(N)}),
        ("activation and epilogue", rows, sums, {"activation": "relu"}),
        (r"sums has shape \[70, 1\]", rows, {"sums": torch.zeros(M, 1)}, {"activation": "swiglu"}),
        ("no epilogue", None, sums, {}),
        ("sums is missing", rows, {}, {}),
        (r"sums has shape \[69\]; for a product of shape \[70, 48\] it is \[70\]", rows, {"sums": torch.zeros(69)}, {}),
        (r"total has shape \[48\]; .* it is \[4, 48\]", Epilogue(ColumnReduce("sum", "total")),
         {"total": torch.zeros(N)}, {}),
        (r"bias has shape \[3, 48\]; .* it is \[48\] or \[4, 48\]", Epilogue(Bias("n", "f32")),
         {"bias": torch.zeros(3, N)}, {}),
        ("named ends", Epilogue(RowReduce("sum", "ends")), {"ends": torch.zeros(M)}, {}),
        ("named rows", Epilogue(RowReduce("sum", "rows")), {"rows": torch.zeros(M)}, {"rows": torch.arange(M)}),
        ("Quantize gives e4m3", Epilogue(Quantize()), {"scales": torch.zeros(M, 1)}, {}),
        *[(f"{name} is of C's rows, and the epilogue stores no C", Epilogue(RowReduce("sum", "sums"), stores_c=False),
           sums, {name: x}) for name, x in OF_C.items()],
        ("rows of torch.float8_e4m3fn are not added", Epilogue(RowReduce("sum", "sums")), sums,
         {"add_rows": OF_C["add_rows"], "out_dtype": torch.float8_e4m3fn}),
        ("stores no C", Epilogue(RowReduce("sum", "sums"), stores_c=False), sums,
         {"out": torch.empty(M, N, dtype=BF16)}),
        ("shares memory with offs", rows, {"sums": ENDS.repeat(40).view(torch.float32)[:M]}, {}),
        ("epilogue: groups of columns take none, groups of rows do", Epilogue(Activation("relu")), {}, columns),
        (r"rows is torch.int64 of shape \[70\]: int32 or int64 of \[4, M\]", rows, sums,
         {"counts": ENDS, "offs": None, "rows": torch.arange(M)}),
        ("out_rows: masked groups of rows by index take none", rows, sums,
         {"counts": ENDS, "offs": None, "rows": torch.zeros(4, M).long(), "out_rows": torch.arange(M)}),
        (r"rows\[1\] = 70: a has 70 rows", rows, sums, {"rows": torch.arange(M) + torch.arange(M).eq(1) * 69}),
        ("a has no rows, and rows has 70 indices", rows, sums, {"rows": torch.arange(M), "a": made.given["a"][:0]}),
    ):  # fmt: skip
        given = {**made.given, **more}
        if "shares" in text:
            given["offs"] = own["sums"].view(torch.int64)[:4]
            own["sums"].view(torch.int64)[:4].copy_(ENDS)
        for call in (grouped_matmul, explain_matmul):
            with pytest.raises(LayoutError, match=text):
                call(**given, epilogue=epilogue, given=own)
