"""Operands that tensor copies cannot read: by threads in place, or copied; which, why, and the product itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks.soak_cases import Case, draw, tensors
from layoutgemm import explain_matmul, matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels.compile.worker import plan_of, received, sent
from layoutgemm.kernels.sm80.choose import Sm80Choice
from layoutgemm.torch_op import choose as torch_choice
from layoutgemm.torch_op import launch as torch_launch
from layoutgemm.torch_op.problem import Problem, StridedOperand, contiguous_strides, shapes_of
from layoutgemm.torch_op.solver import solve
from tests.torch_op.test_operator import BF16, SM90, emulate, emulated, integers


def given(*shape: int, strides: Any = None, dtype: str = "bf16", start: int = 16) -> StridedOperand:
    return StridedOperand(shape, tuple(strides or contiguous_strides(shape)), dtype, start)


def solved(a: StridedOperand, b: StridedOperand, c: StridedOperand | None = None, **more: Any) -> Any:
    return solve(Problem(a, b, c or given(*shapes_of(a.shape, b.shape).result), **more))


@pytest.mark.parametrize(
    "a, align",
    [
        (given(64, 64, strides=(68, 1)), 8), (given(64, 64, strides=(66, 1)), 4), (given(64, 64, strides=(67, 1)), 2),
        (given(64, 64, start=8), 8), (given(64, 64, strides=(68, 1), start=4), 4), (given(64, 64, strides=(1, 66)), 4),
        (given(64, 64, strides=(0, 1), start=8), 8),  # one row for all
        (given(3, 64, 64, strides=(4100, 64, 1)), 8), (given(1, 64, strides=(7, 1), start=8), 8),
    ],
)  # fmt: skip
def test_small_products_are_read_in_place(a: StridedOperand, align: int) -> None:
    """The widest accesses that pitch, address and the distance of a batch's matrices allow."""
    found = solved(a, given(64, 64))
    choice = found.kernel.choice
    assert isinstance(choice, Sm80Choice) and found.copies == (None, None, None) and choice.arch == "sm_90a"
    assert choice.config.align == (align, 16, 16) and f"accesses of {align} and 16 bytes" in found.why
    assert solved(a, given(64, 64), config=SM90).copies[0] is not None
    plan = plan_of(found.kernel)
    assert received(sent(plan)) == plan.for_any_size()


def test_large_products_are_copied() -> None:
    """A copy is made if the slower kernel loses more than it takes: sides of 4096, not of 512."""
    for size, copies in ((512, 0), (4096, 1)):
        a, b = given(size, size, strides=(size + 4, 1)), given(size, size)
        found = solved(a, b)
        assert sum(x is not None for x in found.copies) == copies, found.why
        assert "copied for tensor copies: " in found.why and "(an estimate)" in found.why
    assert not isinstance(solved(given(64, 64), given(64, 64)).kernel.choice, Sm80Choice)
    # a few rows do not pay for the copy of a long matrix
    assert solved(given(64, 4096), given(4096, 8192, strides=(8196, 1))).copies == (None, None, None)
    # neither kernel reads every second element of a line
    assert solved(given(64, 64, strides=(256, 2)), given(64, 64)).copies[0] is not None


def test_the_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = given(512, 512, strides=(516, 1)), given(512, 512)
    assert solved(a, b).copies[0] is None
    monkeypatch.setitem(torch_choice.MODEL.__dict__, "copy", 0.0)
    assert solved(a, b).copies[0] is not None
    monkeypatch.setitem(torch_choice.MODEL.__dict__, "memory", 1e9)
    assert solved(a, b).copies[0] is None


@pytest.mark.parametrize("code, smem", [("sm_80", 0), ("sm_80", 99 << 10), ("sm_120a", 0)])
def test_gpus_without_wgmma_have_this_kernel_alone(code: str, smem: int) -> None:
    for size in (64, 1000, 4096):
        found = solved(given(size, size), given(size, size, strides=(1, size)), code=code, smem=smem)
        plan = torch_launch.plan_of(found)
        assert plan.arch.name == code and plan.smem.total <= (smem or plan.arch.smem_per_block)
        assert plan.a.dtype.name == "bf16" and found.copies == (None, None, None)
        assert plan.check(), plan.check()
    turned = solved(given(64, 64), given(64, 72), given(64, 72, strides=(1, 64)), code=code, smem=smem)
    assert turned.kernel.choice.swapped and torch_launch.plan_of(turned).c.order == "row"
    with pytest.raises(OperandError, match=f"the GPU runs {code}"):
        solved(given(64, 64), given(64, 64), code=code, config=SM90)


def test_what_older_gpus_do_not_multiply_is_refused() -> None:
    eight = given(64, 64, dtype="e4m3")
    with pytest.raises(OperandError, match=r"no mma\.sync kernel for a e4m3:row.*sm_80 has no mma"):
        solved(eight, eight, code="sm_80")
    assert solved(eight, eight, code="sm_120a").copies == (None, None, None)
    wide, narrow = given(64, 64), given(64, 64, dtype="e5m2")
    assert solved(eight, eight, narrow, code="sm_120a").copies == (None, None, None)
    with pytest.raises(OperandError, match=r"c e5m2:row.*stores f32, bf16, f16"):
        solved(wide, wide, narrow, code="sm_80")


def test_plans_of_every_alignment_hold() -> None:
    for align in (8, 4, 2):
        for size in (64, 800, 3000):
            found = solved(given(size, size, strides=(size + 8, 1), start=align), given(size, 64), code="sm_80")
            report = torch_launch.plan_of(found).check()
            assert report, report


# ------------------------------------------------------------------------------------------------------ in the emulator


def off(x: Any, elements: int) -> Any:
    """The same values so many elements off 16 bytes."""
    return torch.empty(x.numel() + elements, dtype=x.dtype)[elements:].view(x.shape).copy_(x)


CASES = {
    "odd pitches": lambda: (integers(70, 67)[:, :33], integers(33, 75)[:, 1:74], None),
    "odd pitches, columns": lambda: (integers(33, 71).T, integers(75, 33).T, None),
    "4 bytes, off by 8": lambda: (off(integers(64, 62), 4), integers(62, 66), None),
    "a batch, one matrix for all": lambda: (integers(3, 20, 33), integers(33, 65)[:, :63].expand(3, 33, 63), None),
    "dimensions that do not join": lambda: (integers(2, 2, 10, 33), integers(2, 2, 33, 9).transpose(0, 1), None),
    "one row for all": lambda: (integers(1, 33).expand(70, 33), integers(33, 40), None),
    "columns of C": lambda: (integers(30, 33), integers(33, 70), lambda: torch.zeros(70, 31, dtype=BF16)[:, 1:].T),
    "between C's lines": lambda: (integers(30, 33), integers(33, 41), lambda: torch.zeros(30, 47, dtype=BF16)[:, 3:44]),
}


@pytest.mark.dsl
@pytest.mark.parametrize("name", CASES)
def test_in_place_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call and a kept launch, which takes addresses that are multiples of 16."""
    a, b, make = CASES[name]()
    monkeypatch.setitem(torch_choice.MODEL.__dict__, "copy", 1.0)  # never copied
    want = torch.matmul(a.double(), b.double()).bfloat16()
    assert not explain_matmul(a, b, out=None if make is None else make()).copies
    with emulated(monkeypatch) as calls:
        for _ in range(2):
            out = None if make is None else make()
            around = None if out is None else out._base.clone()
            got = matmul(a, b, out=out)
            assert torch.equal(got, want)
            if out is not None:
                out.zero_()
                assert torch.equal(out._base, around)
        assert len(calls[0][0]) == 13  # the mma.sync kernel's parameters


@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_random_cases_in_place(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The soak's cases at small sizes, by mma.sync in place of a copy."""
    case = draw(number, seed=7, kinds=(BF16,))
    sizes = tuple(min(size, 150) for size in case.sizes)
    small = Case(
        number, sizes, case.batches, case.vectors, (BF16, BF16, BF16), case.layouts, case.out, None, True, False,
    )  # fmt: skip
    a, b, out, whole = tensors(small, "cpu")
    if 0 in (*shapes_of(a.shape, b.shape).result, sizes[2]):
        return
    monkeypatch.setitem(torch_choice.MODEL.__dict__, "copy", 1.0)
    emulate(a, b, out, None)
    if whole is not None:
        out.fill_(3)
        assert bool((whole == 3).all())
