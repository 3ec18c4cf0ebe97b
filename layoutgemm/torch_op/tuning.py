"""layoutgemm.tune: measure the configurations that could be the fastest for a product. The best one is kept.

Candidates are the heuristic's own and what it takes for the next best; of up to 64 rows, the forms near it. They are
compiled in processes of their own while nothing is measured, and checked against a float64 product.
`layoutgemm.bench.method` times them: random normal operands in rotation, CUDA graphs, bursts in an order drawn anew
each round. The fastest goes into the cache folder (`torch_op/tuned_store.py`), and `layoutgemm.matmul` takes it from
then on.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from ..arguments import shown
from ..bench.method import BenchProblem, CudaDevice, burst
from ..errors import LayoutError, OperandError, PlanError
from ..kernels.compile import cache as object_cache
from ..kernels.compile.worker import Kernel, build
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.prologue import Prologue
from ..kernels.quantized.formats import QuantizedFormat
from ..kernels.sm90.choose.candidates import candidates
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Config
from ..kernels.sm90.quantized.feature_parts import PartsChoice
from ..kernels.streamed.choose import StreamedChoice
from ..kernels.streamed.plan import StreamedConfig
from . import tuned_store as tuned
from .compiled.kept_launches import KEPT
from .prepared import forget, gpu, target
from .quantized.kept import READY as PACKED_READY
from .quantized.launch import forget as forget_packed
from .scaled_grouped.kept import PLANS, READY
from .tunable.epilogue import TunableEpilogue, tunable_epilogue
from .tunable.packed import TunablePacked, tunable_packed
from .tunable.product import TunableMatmul
from .tunable.prologue import TunablePrologue, tunable_prologue
from .tunable.scaled_grouped import Tunable, tunable

__all__ = ["Tuning", "candidates", "name_of", "tune"]

Progress = Callable[[str], object]
Variant = TunableMatmul | Tunable | TunablePrologue | TunableEpilogue | TunablePacked
Call = Callable[[Any, tuned.Choice], object]
_MAJORS = ("k", "mn")


@dataclass(frozen=True)
class Tuning:
    """The results of one tuning.

    choice      the fastest configuration; seconds of one product with it
    chosen      seconds of the heuristic's own configuration
    torch       seconds of torch.matmul, or torch._grouped_mm; NaN where torch has no such product
    measured    (configuration, seconds), the fastest first
    failed      (configuration, why): not derived, not compiled, or wrong
    kept        the file that holds the result, or None where the cache is off
    """

    choice: tuned.Choice
    seconds: float
    chosen: float
    torch: float
    measured: tuple[tuple[tuned.Choice, float], ...]
    failed: tuple[tuple[tuned.Choice, str], ...]
    kept: Path | None

    def __str__(self) -> str:
        of_torch = (
            "torch has no such product" if math.isnan(self.torch) else f"{self.torch / self.seconds:.3f} x torch's"
        )
        return (
            f"{name_of(self.choice)}: {self.seconds * 1e6:.2f} us, {self.chosen / self.seconds:.3f} x the heuristic's, "
            f"{of_torch}; {len(self.measured)} measured, {len(self.failed)} failed"
        )


def tune(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "bf16",
    a_major: str = "k",
    b_major: str = "k",
    most: int = 24,
    rounds: int = 9,
    budget: float = 120.0,
    jobs: int | None = None,
    store: bool = True,
    progress: Progress | None = None,
    recipe_a: object = None,
    recipe_b: object = None,
    groups: int | None = None,
    activation: str | None = None,
    form: str = "rows",
    use_fast_accum: bool = True,
    prologue: Prologue | None = None,
    epilogue: Epilogue | None = None,
    weights: QuantizedFormat | None = None,
) -> Tuning:
    """Measure configurations for one product on the current GPU, and keep the fastest.

    The product is C[m, n] = A[m, k] @ B[k, n], with the recipes that of `scaled_matmul`, and with groups that of
    `grouped_matmul`. With a gate's activation B is [gate | up], of 2n columns. With a format of weights it is that of
    `quantized_matmul`.

    most     configurations that are measured
    dtype    of A, B and C: "bf16" or "f16"; with scales, and of groups, A and B "e4m3" or "e5m2", and C bfloat16
    a_major  "k" for rows of A contiguous, "mn" for columns; b_major "k" for columns of B contiguous, "mn" for rows
    budget   seconds for measuring; compiling comes before it
    jobs     processes that compile at once; default half the processors
    store    keep the result, so that the product takes it
    recipe_a, recipe_b  of the scales, of torch.nn.functional.ScalingType or by name. Without a gate RowWise and
             TensorWise share a result with `matmul` of the same types, whose kernel they take
    use_fast_accum  of RowWise and TensorWise, as `scaled_matmul` has it: each way has a result of its own
    groups   how many groups the m rows of A are in
    form     of groups: "rows"; "masked", of up to m rows each, measured with as many as an unmeasured product expects;
             "K", of groups along the k elements, where a_major and b_major are "mn", and "k" of 8 bits
    activation  "swiglu" or "geglu", of each of these products; B's columns are contiguous
    prologue  of `matmul`: the result is kept for this function, bfloat16 or float16
    epilogue  of `matmul`: the result is kept for these steps, whose matrices have contiguous rows
    weights  the format of B, of `quantized_matmul`: the result is kept for bfloat16 or float16 x and any epilogue
    progress called with a line of text now and then; default writes to stderr

    Raises PlanError without a GPU of compute capability 9.0, OperandError for arguments that mean nothing.
    """
    say = progress or (lambda line: print(f"tune {m}x{n}x{k}: {line}", file=sys.stderr, flush=True))
    _check_sizes((m, n, k))
    others = {
        "recipe_a": recipe_a, "recipe_b": recipe_b, "groups": groups, "activation": activation, "form": form,
        "use_fast_accum": use_fast_accum,
    }  # fmt: skip
    variant = _variant_of((m, n, k), dtype, (a_major, b_major), prologue, epilogue, others, weights)
    gpu_name = _tunable_gpu()
    good, failed = _derivable(variant.candidates(), cast("Callable[[tuned.Choice], object]", variant.plan))
    good = good[:most]
    # Others are compiled by this process, when called.
    if object_cache.cache_dir() is not None and isinstance(variant, TunableMatmul | TunableEpilogue):
        own = [choice for choice in good if isinstance(choice, Sm90Choice)]
        kernels = [Kernel(choice, variant.operand_specs, epilogue=variant.steps) for choice in own]
        answers = build(kernels, jobs, say)
        failed += [(choice, answer) for choice, answer in zip(good, answers) if answer]
    lost = {choice for choice, _ in failed}
    contest = _Contest(variant.operands, cast(Call, variant.call), variant.by_torch(), variant.off)
    problem = BenchProblem(m, n, variant.bytes_as_k if isinstance(variant, TunablePacked) else k)
    measured, wrong, of_torch = _measure(problem, contest, [c for c in good if c not in lost], rounds, budget, say)
    failed += wrong
    if not measured:
        raise PlanError(f"no configuration could be measured: {failed[0][1] if failed else 'there was none'}")
    ranked = tuple(sorted(measured.items(), key=lambda item: item[1]))
    best, seconds = ranked[0]
    default = measured.get(good[0], seconds)
    key = tuned.key_of(variant.sizes, *variant.name)
    kept = _keep(gpu_name, key, best, (seconds, of_torch, default)) if store else None
    tuning = Tuning(best, seconds, default, of_torch, ranked, tuple(failed), kept)
    say(str(tuning))
    return tuning


def _check_sizes(sizes: tuple[int, int, int]) -> None:
    for name, value in zip("mnk", sizes, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OperandError(f"{name} = {shown(value)}: an int of at least 1")


def _variant_of(
    sizes: tuple[int, int, int], dtype: str, majors: tuple[str, str], prologue: Prologue | None,
    epilogue: Epilogue | None, others: dict[str, Any], weights: object = None,
) -> Variant:  # fmt: skip
    """The product that is to be tuned. Raises OperandError for arguments that mean nothing."""
    if weights is not None:
        orders = {f"{name}_major": None if major == "k" else major for name, major in zip("ab", majors)}
        return tunable_packed(
            sizes, dtype, weights, {**others, **orders, "prologue": prologue, "epilogue": epilogue}
        )  # fmt: skip
    if prologue is None and epilogue is None:
        found = tunable(*sizes, dtype, *majors, **others)
        if found is not None:
            return found
    _check_operands(dtype, *majors)
    if epilogue is not None:
        return tunable_epilogue(sizes, dtype, majors, epilogue, {**others, "prologue": prologue})
    if prologue is not None:
        return tunable_prologue(sizes, dtype, majors, prologue, others)
    return TunableMatmul(*sizes, dtype, *majors)


def _check_operands(dtype: str, a_major: str, b_major: str) -> None:
    if dtype not in ("bf16", "f16") or not {a_major, b_major} <= set(_MAJORS):
        raise OperandError(
            f"dtype {shown(dtype)}, a_major {shown(a_major)}, b_major {shown(b_major)}: 'bf16' or 'f16', 'k' or 'mn'"
        )


def _tunable_gpu() -> str:
    """The current GPU's name. Raises PlanError for one that runs no configurations."""
    if not torch.cuda.is_available():
        raise PlanError("tuning measures on a GPU, and torch finds none; `layoutgemm doctor` says what is missing")
    name = gpu(torch.cuda.current_device())[1]
    if (code := target(torch.cuda.current_device())[0]) != "sm_90a":
        raise PlanError(f"{name} runs {code}; what is tuned are configurations of sm_90a's kernel")
    return name


def _derivable(
    found: Iterable[tuned.Choice], plan: Callable[[tuned.Choice], object]
) -> tuple[list[tuned.Choice], list[tuple[tuned.Choice, str]]]:
    """Configurations of which a plan can be derived, and the others with the reason."""
    good: list[tuned.Choice] = []
    failed: list[tuple[tuned.Choice, str]] = []
    for choice in found:
        try:
            plan(choice)
            good.append(choice)
        except LayoutError as error:
            failed.append((choice, str(error)))
    return good, failed


def _keep(gpu_name: str, key: str, best: tuned.Choice, seconds: tuple[float, float, float]) -> Path | None:
    """Store a choice for the product, and forget what was prepared.

    seconds  its own, torch's and the heuristic's
    """
    times = dict(zip(("us", "torch_us", "heuristic_us"), seconds, strict=True))
    kept = tuned.store(gpu_name, key, best, {name: round(value * 1e6, 3) for name, value in times.items()})
    forget()
    forget_packed()
    PACKED_READY.clear()
    READY.clear()
    KEPT.clear()
    PLANS.clear()
    return kept


def name_of(choice: tuned.Choice) -> str:
    """A configuration in a word or two: what differs from the defaults.

    >>> name_of(StreamedChoice(StreamedConfig(8, split=2)))
    'streamed warps=8 split=2'

    >>> name_of(Sm90Choice(Sm90Config((256, 128), cluster=(2, 1)), swapped=True))
    '256x128 swapped cluster=2x1'

    >>> from layoutgemm.kernels import FeatureParts
    >>> name_of(PartsChoice(FeatureParts(((64, Sm90Config((64, 128), consumers=1)), (512, Sm90Config((128, 128)))))))
    '64 features: 64x128 consumers=1 and 512 features: 128x128'
    """
    if isinstance(choice, StreamedChoice):
        own, usual = asdict(choice.config), asdict(StreamedConfig())
        return " ".join(["streamed", *[f"{name}={value}" for name, value in own.items() if value != usual[name]]])
    if isinstance(choice, PartsChoice):
        return " and ".join(f"{count} features: {name_of(Sm90Choice(each))}" for count, each in choice.config.parts)
    defaults = Sm90Config().settings
    parts = ["x".join(map(str, choice.config.tile))] + ["swapped"] * choice.swapped
    for name, value in choice.config.settings.items():
        if name != "tile" and value != defaults[name]:
            parts.append(f"{name}={'x'.join(map(str, value)) if isinstance(value, (tuple, list)) else value}")
    return " ".join(parts)


# --------------------------------------------------------------------------------------------------------- measuring


class _Contest(NamedTuple):
    """Calls that are timed.

    operands  how to make one set of operands
    call      (set, choice) -> the product into the set's output
    by_torch  set -> torch's product, or None
    off       set -> the largest error of its output, in units of what it may be
    """

    operands: Callable[[], Any]
    call: Call
    by_torch: Callable[[Any], object] | None
    off: Callable[[Any], float]


def _measure(
    problem: BenchProblem, contest: _Contest, choices: Sequence[tuned.Choice], rounds: int, budget: float, say: Progress
) -> tuple[dict[tuned.Choice, float], list[tuple[tuned.Choice, str]], float]:
    """Seconds of each configuration, the failed ones, and seconds of torch's product or NaN."""
    start = time.monotonic()
    before = torch.cuda.current_stream()
    device = CudaDevice()
    try:
        sets = [contest.operands() for _ in range(problem.sets)]
        repeats = max(1, problem.launches // len(sets))
        failed: list[tuple[tuned.Choice, str]] = []
        replays, names = {}, {}

        def record(run: Callable[[object], object]) -> Any:
            return device.record([functools.partial(run, each) for each in sets] * repeats)

        if contest.by_torch is not None:
            replays["torch"] = record(contest.by_torch)
        for number, choice in enumerate(choices):
            name = str(number)
            try:
                sets[0][-1].fill_(float("nan"))
                contest.call(sets[0], choice)
                off = contest.off(sets[0])
                if not off <= 1:
                    raise PlanError(f"wrong: an element is off by {off:.3g} times the bound")
                replays[name] = record(lambda each, choice=choice: contest.call(each, choice))  # type: ignore[misc]
                names[name] = choice
            except (LayoutError, RuntimeError) as error:
                failed.append((choice, str(error)))
        per_round = sum(device.seconds(replay) for replay in replays.values()) * 4
        rounds = max(3, min(rounds, int((budget - (time.monotonic() - start)) / max(per_round, 1e-3))))
        beside = " and torch's" if "torch" in replays else ""
        say(f"measuring {len(names)} configurations{beside}, {rounds} rounds of {per_round:.1f} s")
        samples = burst(device, replays, rounds, random.Random(0))
    finally:
        torch.cuda.set_stream(before)
    seconds = {name: statistics.median(values) / len(sets) / repeats for name, values in samples.items()}
    of_torch = seconds.get("torch", math.nan)
    return {names[name]: value for name, value in seconds.items() if name in names}, failed, of_torch
