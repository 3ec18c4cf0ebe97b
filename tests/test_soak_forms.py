"""The soak's gated, scaled and grouped products and own epilogues: drawn, held to their definition, emulated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import soak_forms
from benchmarks.soak_cases import Case, draw, fault, kernel_of, tensors
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.scaled_grouped import grouped_scaled_config
from layoutgemm.torch_op.emulated import emulate
from layoutgemm.torch_op.prepared import choice_of
from layoutgemm.torch_op.scaled_grouped import scaled
from layoutgemm.torch_op.solver import solve
from layoutgemm.torch_op.types import C_NAMES, NAMES
from tests.torch_op.test_operator import SMALL

KINDS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float32, torch.int8)
FORMS = [f"{name} {i}" for name, many in (("gated", 2), ("own", 3), ("scaled", 3), ("grouped", 1)) for i in range(many)]


@cache
def drawn() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for number in range(1500):
        case = draw(number, 3, KINDS)
        found.setdefault(case.form, []).append(case)
    return found


def small(form: str, integers: bool | None = None, most: int = 150, **changes: Any) -> Case:
    """The first case of the form that multiplies something, its sizes cut down."""
    for case in drawn()[form]:
        m, n, k = (min(size, most) for size in case.sizes)
        if min(m, n, k) > 8 and (integers is None or case.integers == integers) and case.types[0].is_floating_point:
            return replace(case, sizes=(m, n, k), **changes)
    raise AssertionError(form)


def test_each_form_is_a_share_of_the_cases() -> None:
    many = {form: len(cases) / 1500 for form, cases in drawn().items()}
    shares = {name: sum(share for form, share in many.items() if form.startswith(name)) for name in SHARE}
    assert all(least < shares[name] < most for name, (least, most) in SHARE.items()), shares
    assert set(drawn()) == {"plain", *FORMS}


SHARE = {"gated": (0.05, 0.09), "own": (0.05, 0.09), "scaled": (0.01, 0.05), "grouped": (0.02, 0.06)}


@pytest.mark.parametrize("form", FORMS)
def test_the_library_is_right_and_faults_are_seen(form: str) -> None:
    for integers in (True, False):
        case = small(form, integers)
        a, b, out, _ = tensors(case, "cpu")
        extra = soak_forms.extras(case, "cpu")
        got = soak_forms.call(case, a, b, out, extra)
        assert fault(case, a, b, got, None, extra) == ""
        at = got.double().abs().argmax()  # as wrong as a term that was left out, or a neighbour's value
        wrong = got.clone().contiguous()
        wrong.view(-1)[at] = (wrong.view(-1)[at].float() * 0.5).to(got.dtype)
        assert fault(case, a, b, wrong, None, extra) != ""
        turned = got.roll(1, -1)
        assert fault(case, a, b, turned, None, extra) != ""


def test_the_kernels_are_found_on_the_cpu() -> None:
    h200 = (ClusterOccupancy(), "NVIDIA H200")
    case = small("gated 0", layouts=("row", "col"), batches=((), ()), out="none", config=None)
    kernel, copies = kernel_of(case, h200)
    assert kernel is not None and kernel.gated == "silu" and copies == (case.sizes[2] % 8 > 0) * 2
    rows, _ = kernel_of(replace(case, layouts=("row", "row")), h200)
    assert rows is not None and (rows.gated, rows.operands[2].partition(":")[0]) == (None, "f32")
    own, _ = kernel_of(small("own 2", batches=((), ())), h200)
    assert own is not None and own.epilogue is not None and own.epilogue.words == ("scale", "scale_batch")
    for form in ("scaled 1", "grouped 0"):
        case = small(form)
        assert kernel_of(case, h200) == (None, 0) and soak_forms.signature(case) is not None
        assert soak_forms.signature(replace(case, sizes=(0, *case.sizes[1:]))) is None
    assert soak_forms.signature(small("own 1")) is None


FEW = ("gated 1", "own 2", "grouped 0")


@pytest.mark.dsl
@pytest.mark.parametrize(
    "form", [form if form in FEW else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]
)
def test_forms_in_the_emulator(form: str) -> None:
    """Each solved or planned case is launched with the exact arguments of a GPU."""
    case = small(form, True, 90, batches=((), (3,) if form.startswith("grouped") else ()), out="none", config=SMALL)
    if form.startswith("gated"):
        case = replace(case, layouts=("row", "col"))
    a, b, _, _ = tensors(case, "cpu")
    extra = soak_forms.extras(case, "cpu")
    if form.startswith(("scaled", "grouped")):
        got = _planned(case, a, b, extra)
    else:
        got = torch.full(soak_forms.result_shape(case, a, b), float("nan")).to(case.types[2])
        problem, words = soak_forms.problem_and_words(case, a, b, got, choice_of(SMALL), (ClusterOccupancy(), ""))
        assert (problem.gated is not None) == form.startswith("gated")
        held = [extra["scale"].numpy() if word > 1 << 32 else word for word in words]
        emulate(solve(problem), a, b, got, held)
    assert fault(case, a, b, got, None, extra) == ""


def _planned(case: Case, a: Any, b: Any, extra: dict[str, Any]) -> Any:
    m, n, k = case.sizes
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:col", C_NAMES[case.types[2]]
    groups, ragged, batch = (), None, 1
    if case.form.startswith("scaled"):
        groups = tuple(group for group in soak_forms.SCALES[int(case.form.split()[1])] if group is not None)
    else:
        batch = b.shape[0]
        ragged = Ragged.of(batch, "i32" if extra["offsets"].dtype == torch.int32 else "i64")
    plan = scaled.derived((m, n, k, batch), types, groups or None, grouped_scaled_config(64), ragged)
    given = {name: x.numpy() for name, x in extra.items()}
    found = plan.run(a.float().numpy(), b.float().numpy(), device="emulator", given=given).c
    return torch.from_numpy(found).to(case.types[2])
