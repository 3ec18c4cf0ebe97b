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
import numbers
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from ..arguments import as_bool, as_int, names_unknown, shown
from ..bench.method import BenchProblem, CudaDevice, burst
from ..errors import LayoutError, OperandError, PlanError
from ..kernels.compile import cache as object_cache
from ..kernels.compile.worker import Kernel, build, plan_of
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.prologue import Prologue
from ..kernels.plan import MAX_COORDINATE
from ..kernels.quantized.formats import QuantizedFormat
from ..kernels.sm90.choose.candidates import candidates
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Config
from ..kernels.sm90.quantized.feature_parts import PartsChoice
from ..kernels.streamed.choose import StreamedChoice
from ..kernels.streamed.plan import StreamedConfig
from . import tuned_store as tuned
from .api import matmul
from .compiled.kept_launches import KEPT
from .emulated_gpu import check_time
from .prepared import forget, gpu, target
from .quantized.kept import READY as PACKED_READY
from .quantized.launch import forget as forget_packed
from .scaled_grouped.api import grouped_matmul, scaled_matmul
from .scaled_grouped.kept import PLANS, READY
from .tunable.call import TunableCall
from .tunable.epilogue import TunableEpilogue, tunable_epilogue
from .tunable.packed import TunablePacked, tunable_packed
from .tunable.product import TunableMatmul
from .tunable.prologue import TunablePrologue, tunable_prologue
from .tunable.scaled_grouped import Tunable, tunable

__all__ = ["Tuning", "candidates", "name_of", "tune", "tune_call"]

Progress = Callable[[str], object]
Variant = TunableMatmul | Tunable | TunablePrologue | TunableEpilogue | TunablePacked
Call = Callable[[object, "tuned.Choice | None"], object]
Off = Callable[[object, "tuned.Choice | None"], float]
_MAJORS = ("k", "mn")


@dataclass(frozen=True)
class Tuning:
    """The results of one tuning.

    choice      the fastest configuration, None for the usual one; seconds of one product with it
    chosen      seconds of the heuristic's own configuration
    torch       seconds of torch.matmul, or torch._grouped_mm; NaN where torch has no such product
    measured    (configuration, seconds), the fastest first
    failed      (configuration, why): not derived, not compiled, or wrong
    kept        the file that holds the result, or None where the cache is off
    """

    choice: tuned.Choice | None
    seconds: float
    chosen: float
    torch: float
    measured: tuple[tuple[tuned.Choice | None, float], ...]
    failed: tuple[tuple[tuned.Choice | None, str], ...]
    kept: Path | None

    def __str__(self) -> str:
        of_torch = (
            "torch has no such product" if math.isnan(self.torch) else f"{self.torch / self.seconds:.3f} x torch's"
        )
        return (
            f"{name_of(self.choice)}: {self.seconds * 1e6:.2f} us, {self.chosen / self.seconds:.3f} x the heuristic's, "
            f"{of_torch}; {len(self.measured)} measured, {len(self.failed)} failed"
        )


@names_unknown
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
    m, n, k = (as_int(size, name, OperandError, 1, MAX_COORDINATE) for name, size in zip("mnk", (m, n, k)))
    most, rounds, budget = _limits(most, rounds, budget, store, progress)
    jobs = None if jobs is None else as_int(jobs, "jobs", OperandError, 1)
    others = {
        "recipe_a": recipe_a, "recipe_b": recipe_b, "groups": groups, "activation": activation, "form": form,
        "use_fast_accum": use_fast_accum,
    }  # fmt: skip
    say = progress or (lambda line: print(f"tune {m}x{n}x{k}: {line}", file=sys.stderr, flush=True))
    variant = _variant_of((m, n, k), dtype, (a_major, b_major), prologue, epilogue, others, weights)
    gpu_name = _tunable_gpu()
    good, refused = _derivable(variant.candidates(), cast("Callable[[tuned.Choice], object]", variant.plan))
    failed: Failed = [*refused]
    good = good[:most]
    # Others are compiled by this process, when called.
    if object_cache.cache_dir() is not None and isinstance(variant, TunableMatmul | TunableEpilogue):
        own = [choice for choice in good if isinstance(choice, Sm90Choice)]
        kernels = [plan_of(Kernel(choice, variant.operand_specs, epilogue=variant.steps)) for choice in own]
        answers = build(kernels, jobs, say)
        failed += [(choice, answer) for choice, answer in zip(good, answers) if answer]
    lost = {choice for choice, _ in failed}
    by_torch = cast("Callable[[object], object] | None", variant.by_torch())
    contest = _Contest(variant.operands, cast(Call, variant.call), by_torch, _off_of(variant))
    problem = BenchProblem(m, n, variant.bytes_as_k if isinstance(variant, TunablePacked) else k)
    choices = [choice for choice in good if choice not in lost]
    measured, wrong, of_torch = _measure(problem, contest, choices, most, rounds, budget, say)
    failed += wrong
    if not measured:
        raise PlanError(f"no configuration could be measured: {failed[0][1] if failed else 'there was none'}")
    keys = [tuned.key_of(variant.sizes, *variant.name)] if store else []
    return _concluded(gpu_name, keys, measured, good[0], of_torch, failed, say)


def tune_call(
    door: Callable[..., torch.Tensor],
    *args: object,
    most: int = 24,
    rounds: int = 9,
    budget: float = 120.0,
    store: bool = True,
    progress: Progress | None = None,
    **options: object,
) -> Tuning:
    """Measure configurations for one call on the current GPU, and keep the fastest.

    Later calls of the same sizes, types, orders and parts take it: `combine=`, pairs, `order=`, `rows=`, `out_rows=`,
    `add_rows=`, a prologue and an epilogue, also of groups and behind scales. The configuration is of the forward pass.

    door     `layoutgemm.matmul`, `grouped_matmul` or `scaled_matmul`
    args, options  of the call, CUDA tensors among them, without `config`; copies of them are measured
    most, rounds, budget, store, progress  as `tune` has them. Kernels are compiled one after the other

    Each candidate's results are compared with those of the usual configuration. Where the usual configuration is the
    fastest, `choice` says None, and an earlier result is removed.

    Raises PlanError without a GPU of compute capability 9.0, and for a call that no configuration is looked for.
    Raises OperandError for another function, and as the call itself.

    >>> tune_call(torch.matmul, torch.zeros(1, 1), torch.zeros(1, 1))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: door is torch.matmul: layoutgemm's matmul, grouped_matmul or scaled_matmul
    """
    if door not in _DOORS:
        name = f"{getattr(door, '__module__', None) or 'torch'}.{getattr(door, '__name__', shown(door))}"
        raise OperandError(f"door is {name}: layoutgemm's matmul, grouped_matmul or scaled_matmul")
    if options.pop("config", None) is not None:
        raise OperandError("config: it is what tune_call finds; leave it out")
    most, rounds, budget = _limits(most, rounds, budget, store, progress)
    say = progress or (lambda line: print(f"tune {door.__name__}: {line}", file=sys.stderr, flush=True))
    variant = TunableCall(door, args, options)
    gpu_name = _tunable_gpu(variant.device)
    _forget_launches()
    try:
        (m, n, _, _), *_ = variant.asked
        contest = _Contest(variant.operands, cast(Call, variant.call), None, lambda on, choice: variant.off(choice))
        problem = BenchProblem(m, n, max(1, (variant.bytes // 2 - m * n) // (m + n)))
        with torch.no_grad(), tuned.unmeasured():
            measured, failed, of_torch = _measure(problem, contest, variant.candidates(), most, rounds, budget, say)
    finally:
        _forget_launches()
    keys = list(variant.asked.values()) if store else []
    return _concluded(gpu_name, keys, measured, None, of_torch, failed, say)


_DOORS = (matmul, grouped_matmul, scaled_matmul)
Measured = dict["tuned.Choice | None", float]
Failed = list[tuple["tuned.Choice | None", str]]


def _concluded(
    gpu_name: str, keys: Sequence[str], measured: Measured, default: tuned.Choice | None, of_torch: float,
    failed: Failed, say: Progress,
) -> Tuning:  # fmt: skip
    """The results of one tuning, kept by each of the keys. Raises PlanError where nothing was measured."""
    if not measured:
        raise PlanError(f"no configuration could be measured: {failed[0][1] if failed else 'there was none'}")
    ranked = tuple(sorted(measured.items(), key=lambda item: item[1]))
    best, seconds = ranked[0]
    usual, kept = measured.get(default, seconds), None
    for key in keys:
        kept = _keep(gpu_name, key, best, (seconds, of_torch, usual))
    tuning = Tuning(best, seconds, usual, of_torch, ranked, tuple(failed), kept)
    say(str(tuning))
    return tuning


def _limits(most: int, rounds: int, budget: float, store: bool, progress: object) -> tuple[int, int, float]:
    """The limits of one tuning. Raises OperandError for arguments that mean nothing."""
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real) or not 0 < budget < math.inf:
        raise OperandError(f"budget = {shown(budget)}: seconds, a finite number above 0")
    as_bool(store, "store", OperandError)
    if progress is not None and not callable(progress):
        raise OperandError(f"progress = {shown(progress)}: a function of a line of text, or None")
    return as_int(most, "most", OperandError, 1), as_int(rounds, "rounds", OperandError, 1), float(budget)


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


def _tunable_gpu(device: torch.device | None = None) -> str:
    """The name of a device, or of the current GPU. Raises PlanError for one that runs no configurations."""
    check_time("tuning")
    if not torch.cuda.is_available():
        raise PlanError("tuning measures on a GPU, and torch finds none; `layoutgemm doctor` says what is missing")
    if device is not None and (device.type != "cuda" or device.index != torch.cuda.current_device()):
        raise PlanError(f"tuning measures on the current GPU, and the operands are on {device}")
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


def _keep(gpu_name: str, key: str, best: tuned.Choice | None, seconds: tuple[float, float, float]) -> Path | None:
    """Store a choice for the product, and forget what was prepared.

    seconds  its own, torch's and the heuristic's
    """
    times = dict(zip(("us", "torch_us", "heuristic_us"), seconds, strict=True))
    kept = tuned.store(gpu_name, key, best, {name: round(value * 1e6, 3) for name, value in times.items()})
    _forget_launches()
    return kept


def _forget_launches() -> None:
    """Forget what was prepared, so that the next call of each chooses anew."""
    forget()
    forget_packed()
    PACKED_READY.clear()
    READY.clear()
    KEPT.clear()
    PLANS.clear()


def name_of(choice: tuned.Choice | None) -> str:
    """A configuration in a word or two: what differs from the defaults. None is the usual one.

    >>> name_of(StreamedChoice(StreamedConfig(8, split=2)))
    'streamed warps=8 split=2'

    >>> name_of(Sm90Choice(Sm90Config((256, 128), cluster=(2, 1)), swapped=True))
    '256x128 swapped cluster=2x1'

    >>> from layoutgemm.kernels import FeatureParts
    >>> name_of(PartsChoice(FeatureParts(((64, Sm90Config((64, 128), consumers=1)), (512, Sm90Config((128, 128)))))))
    '64 features: 64x128 consumers=1 and 512 features: 128x128'
    """
    if choice is None:
        return "the usual configuration"
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
    off       (set, choice) -> the largest error of the choice's product, in units of what it may be
    """

    operands: Callable[[], object]
    call: Call
    by_torch: Callable[[object], object] | None
    off: Off


def _off_of(variant: Variant) -> Off:
    """The error of a product by a configuration, into an output filled with NaN."""
    call, error = cast(Call, variant.call), cast("Callable[[object], float]", variant.off)

    def off(on: object, choice: tuned.Choice | None) -> float:
        cast(Sequence[torch.Tensor], on)[-1].fill_(float("nan"))
        call(on, choice)
        return error(on)

    return off


def _measure(
    problem: BenchProblem, contest: _Contest, choices: Iterable[tuned.Choice | None], most: int, rounds: int,
    budget: float, say: Progress,
) -> tuple[Measured, Failed, float]:  # fmt: skip
    """Seconds of each configuration, the failed ones, and seconds of torch's product or NaN.

    most  configurations that are measured
    """
    start = time.monotonic()
    before = torch.cuda.current_stream()
    device = CudaDevice()
    try:
        sets = [contest.operands() for _ in range(problem.sets)]
        repeats = max(1, problem.launches // len(sets))
        failed: Failed = []
        names: dict[str, tuned.Choice | None] = {}
        replays = {}

        def record(run: Callable[[object], object]) -> Callable[[], object]:
            return device.record([functools.partial(run, each) for each in sets] * repeats)

        if contest.by_torch is not None:
            replays["torch"] = record(contest.by_torch)
        for number, choice in enumerate(choices):
            if len(names) == most:
                break
            name = str(number)
            try:
                off = contest.off(sets[0], choice)
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
