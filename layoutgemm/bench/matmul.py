"""Measurements of `layoutgemm bench`: `layoutgemm.matmul` on this GPU against torch.mm and cuBLASLt.

The method is that of `bench`: random normal operands in rotation, correctness against float64 first, then CUDA graphs
timed in bursts in random order. A call of `matmul` on these operands runs the same kernel and makes the same copies.
Its configuration is the one that `layoutgemm.tune` kept, else the choice of `kernels.sm90.choose.rules.choose`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OperandError, PlanError
from . import machine as bench_machine
from .contenders import KEEP, cublaslt, each, torch_mm
from .method import ROTATION_BYTES, BenchProblem, Contender, CudaDevice, Device, Launch, Operands
from .outcome import BASELINE, OURS, DeviceLost, Measured, Method, Outcome, measure

if TYPE_CHECKING:
    from ..torch_op.explain import Explanation

NAME = "layoutgemm"
MAX_SETS = 4096  # operand sets in rotation; products that need more are too small to time apart from their launches
SUSTAINED_ROUNDS = 3


@dataclass(frozen=True)
class Comparison:
    """The measurements of one product.

    kernel   matmul's, as its plan says; why it, and not another; copies of operands that matmul makes, as sentences.
             All empty where there is no kernel, which `outcome.failed` then says
    """

    outcome: Outcome
    kernel: str = ""
    why: str = ""
    copies: tuple[str, ...] = ()

    @property
    def ours(self) -> Measured | None:
        """Our measurement, or None if it failed."""
        return self._of(NAME)

    @property
    def ratio(self) -> float | None:
        """torch.mm's burst time over ours; None where either is missing."""
        ours, theirs = self.ours, self._of(BASELINE)
        return None if ours is None or theirs is None else theirs.seconds / ours.seconds

    def _of(self, name: str) -> Measured | None:
        return next((m for m in self.outcome.measured if m.name == name), None)


def cuda_device(problem: BenchProblem) -> tuple[CudaDevice, dict[str, object]]:
    """torch's current GPU and its facts.

    Raises PlanError without a GPU, with the commands that need none, and OperandError if no kernel runs on the GPU.
    """
    instead = (
        f"without one `layoutgemm plan {problem.m} {problem.n} {problem.k} -b bf16:col` derives and checks a kernel, "
        "`layoutgemm demo --device emulator` runs one in the emulator; `layoutgemm doctor` says what is missing"
    )
    if importlib.util.find_spec("torch") is None:
        raise PlanError(f"bench measures on a GPU through torch, which is not installed; {instead}")
    import torch

    if not torch.cuda.is_available():
        raise PlanError(f"bench measures on a GPU, and torch finds none; {instead}")
    from ..torch_op import emulated_gpu, prepared

    emulated_gpu.check_time("bench")
    prepared.gpu(torch.cuda.current_device())
    source, sampler = bench_machine.sampler()
    return CudaDevice(sampler), {**bench_machine.facts(), "clock and power": source}


def compare(
    device: Device,
    problem: BenchProblem,
    *,
    peers: bool = False,
    rounds: int = 11,
    sustained: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Check and measure one product.

    peers      cuBLASLt's proposals as well, the best two of them in all rounds
    rounds     of bursts, at least one
    sustained  also at sustained load, each contender alone for 0.8 s three times
    progress   called with what is about to be done

    Raises OperandError for a product too small to be measured or too large for the GPU, and PlanError when a kernel
    has left the GPU unusable.
    """
    check_size(problem)
    told: list[Explanation] = []

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        from ..torch_op.api import matmul
        from ..torch_op.explain import explain_matmul

        a, b, c = sets[0]
        told.append(explain_matmul(a, b.T, out=c))
        return each(lambda a, b, c: matmul(a, b.T, out=c))(sets)

    field = [*torch_mm(problem), *(cublaslt(problem) if peers else []), Contender(NAME, prepare, OURS)]
    method = Method(rounds, sustained_rounds=SUSTAINED_ROUNDS if sustained else 0, keep=KEEP)
    try:
        outcome = measure(device, problem, field, method, progress)
    except DeviceLost as error:
        raise PlanError(f"{problem}: {error}") from error
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's: torch is not imported for a name
            raise
        total = problem.sets * (problem.bytes + 8 * problem.m * problem.n) + 8 * problem.k * (problem.m + problem.n)
        raise OperandError(f"{problem}: operands and float64 products of {total / 1e9:.1f} GB do not fit") from error
    if not told:
        return Comparison(outcome)
    return Comparison(outcome, told[0].kernel, told[0].why, told[0].copies)


def check_size(problem: BenchProblem) -> None:
    """Raise OperandError for a product whose operands are too small for the method.

    >>> check_size(BenchProblem(16, 16, 16))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: 16x16x16: too small, A, B and C have 1536 bytes; 4096 such sets have to make 240 MB
    """
    if problem.sets > MAX_SETS:
        raise OperandError(
            f"{problem}: too small, A, B and C have {problem.bytes} bytes; {MAX_SETS} such sets have to make "
            f"{ROTATION_BYTES / 1e6:.0f} MB"
        )
