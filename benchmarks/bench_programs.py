"""Times the programs kernels/variant_*.py at 4096 and 8192: ours, torch's formula, torch.compile's, and quack's.

    python benchmarks/bench_programs.py --json benchmarks/results/programs_h200.json     # on the GPU, about ten minutes
    python benchmarks/bench_programs.py router causal --size 4096
    python benchmarks/bench_programs.py router quantised cross-entropy --size 8192 --tiles --jobs 13

Each result is first compared with the formula in float64, and a second call has to give the same bits. Contenders get
the same operands: two sets in turn, in one CUDA graph. Times are bursts by `layoutgemm/bench/method.py`. torch.compile
runs in two modes. quack has three of the programs, and runs them with the configuration that it takes untuned.
`--tiles` adds other configurations of five programs (`configurations.of_programs`), each compiled and compared first.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_variants import attempt
from benchmarks.configurations import of_programs
from benchmarks.timing import microseconds
from layoutgemm import grouped_matmul, matmul
from layoutgemm.bench.method import CudaDevice, Launch
from layoutgemm.dtypes import f32
from layoutgemm.kernels.epilogue.chain import (
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    VectorScale,
)

if TYPE_CHECKING:
    import torch

    from layoutgemm.torch_op.prepared import Config

OURS, EAGER, ALONE, QUACK = "ours", "eager", "product alone", "quack"
MODES = ("default", "max-autotune-no-cudagraphs")
SIZES = (4096, 8192)
VOCABULARY, EXPERTS, CHOICES, WIDTH, ROUTED, HEAD, RANK = 128256, 8, 2, 2048, 256, 128, 16
SETS = 2
# Of the largest value; the share of indices. A rounding may fall either way, and the largest two values of e4m3 are 416
# and 448.
BF16_ERROR, E4M3_ERROR, F32_ERROR, OTHER_INDICES = 2.0**-7, 32 / 448, 1e-4, 1e-3
NEGATIVE_INFINITY = float("-inf")

Operands = tuple[Any, ...]
Call = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """One program at one size. Calls take the operands and return the results in the same order.

    sizes     M, N, K of its product, for reading
    operands  a set of them, from a device
    ours      by layoutgemm
    formula   by torch; of float64 operands it is what ours is compared with
    alone     our product without what is fused into it
    quack     quack's call, or None
    exact     the formula in float64, where torch's own function does not take it
    compared  the part of a result that is compared
    modes     of torch.compile
    tiled     ours by a configuration that is given
    """

    sizes: tuple[int, int, int]
    operands: Callable[[str], Operands]
    ours: Call
    formula: Call
    alone: Callable[..., Any]
    quack: Call | None = None
    exact: Call | None = None
    compared: Callable[[Any], Any] = lambda result: result
    modes: tuple[str, ...] = MODES
    tiled: Callable[..., tuple[Any, ...]] | None = None


def normal(*shape: int, where: str, scale: float = 1.0) -> torch.Tensor:
    """Random bf16 values."""
    import torch

    return (torch.randn(*shape, device=where) * scale).bfloat16()


def product_operands(m: int, n: int, k: int, scale: float | None = None) -> Callable[[str], Operands]:
    """Sets of A and a B with K contiguous."""
    return lambda where: (
        normal(m, k, where=where),
        normal(n, k, where=where, scale=k**-0.5 if scale is None else scale).T,
    )


# ------------------------------------------------------------------------------------------------ reductions along rows


def attention(size: int) -> Program:
    """Maximum and log-sum-exp of each row of causal scores."""
    import torch

    causal = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x * 0.125, NEGATIVE_INFINITY))
    epilogue = Epilogue(causal, RowReduce("softmax", "row"), stores_c=False)

    def ours(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = {name: a.new_empty(size, dtype=torch.float32) for name in ("row_max", "row_log_sum_exp")}
        matmul(a, b, epilogue=epilogue, given=found)
        return tuple(found.values())

    def formula(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = wide(a @ b) * 0.125
        row, column = (torch.arange(n, device=scores.device) for n in scores.shape)
        scores = torch.where(column[None, :] <= row[:, None], scores, NEGATIVE_INFINITY)
        return scores.amax(1), scores.logsumexp(1)

    return Program((size, size, HEAD), product_operands(size, size, HEAD, 1.0), ours, formula, matmul)


def rms_norm(size: int) -> Program:
    """The product with a residual, and 1 / rms of its rows."""
    import torch

    inverse = Reduction.of(
        lambda x, i, j, ops: x * x, lambda a, b, ops: a[0] + b[0], [0.0], lambda a, ops: ops.rsqrt(a[0] / size + 1e-6)
    )
    epilogue = Epilogue(Residual("bf16", beta=None), RowReduce(inverse, "inverse_rms"))
    product = product_operands(size, size, size)

    def ours(
        a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, config: Config | None = None
    ) -> tuple[torch.Tensor, ...]:
        found = a.new_empty(size, dtype=torch.float32)
        return matmul(a, b, epilogue=epilogue, given={"d": d, "inverse_rms": found}, config=config), found

    def formula(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = a @ b + d
        return x, (wide(x).square().mean(1) + 1e-6).rsqrt()

    def quack(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from quack.gemm_interface import gemm_rms

        return tuple(gemm_rms(a, b, d, tuned=False))

    return Program(
        (size,) * 3, lambda where: (*product(where), normal(size, size, where=where)), ours, formula, first_two, quack,
        tiled=ours,
    )  # fmt: skip


def cross_entropy(size: int) -> Program:
    """Log-sum-exp of each row of logits, and the label's logit."""
    import torch

    picked = Custom.of(
        lambda x, i, j, ops, label: ops.where(ops.float(j) == label, x, 0.0), EpilogueOperand("label", "m", f32)
    )
    epilogue = Epilogue(RowReduce("log_sum_exp", "all"), picked, RowReduce("sum", "own"), stores_c=False)
    product = product_operands(size, VOCABULARY, size)

    def operands(where: str) -> Operands:
        return *product(where), torch.randint(VOCABULARY, (size,), device=where)

    def ours(
        a: torch.Tensor, b: torch.Tensor, label: torch.Tensor, config: Config | None = None
    ) -> tuple[torch.Tensor, ...]:
        found = {name: a.new_empty(size, dtype=torch.float32) for name in ("all", "own")}
        matmul(a, b, epilogue=epilogue, given={"label": label.float(), **found}, config=config)
        return tuple(found.values())

    def formula(a: torch.Tensor, b: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = wide(a @ b)
        return logits.logsumexp(1), logits.gather(1, label[:, None])[:, 0]

    return Program((size, VOCABULARY, size), operands, ours, formula, first_two, tiled=ours)


def router(size: int) -> Program:
    """The largest logit of each row, and its column."""
    import torch

    epilogue = Epilogue(RowReduce("argmax", "best"), stores_c=False)

    def ours(a: torch.Tensor, b: torch.Tensor, config: Config | None = None) -> tuple[torch.Tensor, ...]:
        value, index = a.new_empty(size, dtype=torch.float32), a.new_empty(size, dtype=torch.int32)
        matmul(a, b, epilogue=epilogue, given={"best_value": value, "best_index": index}, config=config)
        return value, index

    def formula(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value, index = (a @ b).max(1)
        return value, index

    return Program((size, ROUTED, 7168), product_operands(size, ROUTED, 7168), ours, formula, matmul, tiled=ours)


def quantised(size: int) -> Program:
    """e4m3 values, and a scale for every 128 columns of a row."""
    import torch

    epilogue = Epilogue(Quantize())

    def ours(a: torch.Tensor, b: torch.Tensor, config: Config | None = None) -> tuple[torch.Tensor, ...]:
        scales = a.new_empty(size, size // 128, dtype=torch.float32)
        given, kind = {"scales": scales}, torch.float8_e4m3fn
        return matmul(a, b, epilogue=epilogue, given=given, out_dtype=kind, config=config), scales

    def formula(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = wide(a @ b).unflatten(1, (-1, 128))
        amax = x.abs().amax(-1).clamp_min(1e-10)
        return (x * (448.0 / amax)[..., None]).flatten(1).to(torch.float8_e4m3fn), amax / 448.0

    return Program((size,) * 3, product_operands(size, size, size), ours, formula, matmul, tiled=ours)


# --------------------------------------------------------------------------------------- orders of tiles, and operands


def causal(size: int) -> Program:
    """The lower triangle of A B^T. Ours leaves what lies above it as it is, in one buffer of zeros."""
    import torch

    outs: dict[torch.device, torch.Tensor] = {}

    def ours(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if a.device not in outs:
            outs[a.device] = a.new_zeros(size, size)
        return (matmul(a, b, order="lower", out=outs[a.device]),)

    def formula(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((a @ b).tril(),)

    return Program((size,) * 3, product_operands(size, size, size), ours, formula, matmul, compared=torch.tril)


def symmetric(size: int) -> Program:
    """A A^T."""
    import torch

    def quack(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from quack.gemm_interface import gemm_symmetric

        found = gemm_symmetric(a, a.mT)
        return (found if isinstance(found, torch.Tensor) else found[-1],)

    return Program(
        (size,) * 3,
        lambda where: (normal(size, size, where=where, scale=size**-0.25),),
        lambda a: (matmul(a, a.T, order="symmetric"),),
        lambda a: (a @ a.T,),
        lambda a: matmul(a, a.T),
        quack,
    )


def dual(size: int) -> Program:
    """silu(A @ B0) * (A @ B1)."""
    import torch

    scale = size**-0.5

    def operands(where: str) -> Operands:
        return normal(size, size, where=where), *(normal(size, size, where=where, scale=scale).T for _ in range(2))

    def formula(a: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.silu(a @ b0) * (a @ b1),)

    # quack takes one matrix with the columns of both in turn: made at the first call, before the graph.
    beside = functools.cache(lambda b0, b1: torch.stack([b0.T, b1.T], 1).flatten(0, 1).T)

    def quack(a: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from quack.gemm_interface import gemm_act

        return (gemm_act(a, beside(b0, b1), activation="swiglu", store_preact=False, tuned=False)[1],)

    def ours(
        a: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, config: Config | None = None
    ) -> tuple[torch.Tensor, ...]:
        return (matmul(a, (b0, b1), combine="silu", config=config),)

    return Program(
        (size, 2 * size, size), operands, ours, formula, lambda a, b0, b1: (matmul(a, b0), matmul(a, b1)), quack,
        tiled=ours,
    )  # fmt: skip


def low_rank(size: int) -> Program:
    """X @ W + (X @ D) @ U."""

    def operands(where: str) -> Operands:
        x, w = product_operands(size, size, size)(where)
        return x, w, normal(RANK, size, where=where, scale=size**-0.5).T, normal(size, RANK, where=where).T

    def ours(x: torch.Tensor, w: torch.Tensor, d: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (matmul((x, matmul(x, d)), (w, u)),)

    def formula(x: torch.Tensor, w: torch.Tensor, d: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w + (x @ d) @ u,)

    return Program((size,) * 3, operands, ours, formula, first_two)


def experts(size: int) -> Program:
    """Two products of each token with its two experts' weights, weighted and summed.

    Autotuning torch._grouped_mm ends the process with an illegal memory access (torch 2.11): not asked for.
    """
    import torch

    rows = size * CHOICES

    def operands(where: str) -> Operands:
        chosen = torch.stack([torch.randperm(EXPERTS)[:CHOICES] for _ in range(size)]).flatten().to(where)
        order = chosen.argsort(stable=True).int()  # rows by expert: token * choices + choice
        offsets = torch.cat([order.new_zeros(1), torch.bincount(chosen, minlength=EXPERTS).cumsum(0).int()]).int()
        weights = [
            normal(EXPERTS, n, k, where=where, scale=k**-0.5).mT for n, k in ((2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH))
        ]
        return normal(size, WIDTH, where=where), *weights, order, offsets, torch.rand(rows, device=where)

    def ours(x: Any, up: Any, down: Any, order: Any, offsets: Any, gate: Any) -> tuple[torch.Tensor, ...]:
        h = grouped_matmul(x, up, offsets, rows=order // CHOICES, activation="relu")
        y = grouped_matmul(h, down, offsets, out_rows=order, row_weights=gate).view(size, CHOICES, WIDTH)
        return (y[:, 0] + y[:, 1],)  # torch's eager sum over an axis of two takes three times as long

    def formula(x: Any, up: Any, down: Any, order: Any, offsets: Any, gate: Any) -> tuple[torch.Tensor, ...]:
        h = torch._grouped_mm(x[order // CHOICES], up, offs=offsets[1:]).relu()
        y = torch._grouped_mm(h, down, offs=offsets[1:]) * gate[:, None].bfloat16()
        return (torch.empty_like(y).index_copy_(0, order.long(), y).view(size, CHOICES, WIDTH).sum(1),)

    def exact(x: Any, up: Any, down: Any, order: Any, offsets: Any, gate: Any) -> tuple[torch.Tensor, ...]:
        ends, taken = offsets.tolist(), x[order // CHOICES]
        parts = [(taken[i:j] @ up[e]).relu() @ down[e] for e, (i, j) in enumerate(pairwise(ends))]
        y = torch.cat(parts) * gate[:, None]
        return (torch.empty_like(y).index_copy_(0, order.long(), y).view(size, CHOICES, WIDTH).sum(1),)

    def alone(x: Any, up: Any, down: Any, order: Any, offsets: Any, gate: Any) -> torch.Tensor:
        return grouped_matmul(grouped_matmul(x.repeat(CHOICES, 1), up, offsets), down, offsets)

    return Program((rows, 2 * WIDTH, WIDTH), operands, ours, formula, alone, exact=exact, modes=MODES[:1])


def int8(size: int) -> Program:
    """Products of int8 values, scaled by row of A and column of B."""
    import torch

    epilogue = Epilogue(VectorScale("m", "f32", "row"), VectorScale("n", "f32", "column"))

    def operands(where: str) -> Operands:
        a, b = (torch.randint(-127, 128, (size, size), device=where, dtype=torch.int8) for _ in range(2))
        return a, b.T, *(torch.rand(size, device=where) / size for _ in range(2))

    def ours(a: Any, b: Any, row: Any, column: Any) -> tuple[torch.Tensor, ...]:
        given = {"row": row, "column": column}
        return (matmul(a, b, epilogue=epilogue, given=given, out_dtype=torch.bfloat16),)

    def formula(a: Any, b: Any, row: Any, column: Any) -> tuple[torch.Tensor, ...]:
        return ((torch._int_mm(a, b).float() * row[:, None] * column).bfloat16(),)

    def exact(a: Any, b: Any, row: Any, column: Any) -> tuple[torch.Tensor, ...]:
        return (a @ b * row[:, None] * column,)

    return Program((size,) * 3, operands, ours, formula, lambda a, b, *_: matmul(a, b), exact=exact)


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "attention statistics": attention,
    "rms norm": rms_norm,
    "cross-entropy": cross_entropy,
    "router": router,
    "quantised": quantised,
    "causal": causal,
    "dual": dual,
    "low rank": low_rank,
    "experts": experts,
    "symmetric": symmetric,
    "int8": int8,
}


def first_two(a: Any, b: Any, *_: Any) -> Any:
    """The plain product of the first two operands."""
    return matmul(a, b)


def wide(x: torch.Tensor) -> torch.Tensor:
    """bf16 as float32; wider values as they are."""
    return x.float() if x.element_size() < 4 else x


# ------------------------------------------------------------------------------------------------------- check and time


def fault(program: Program, operands: Operands) -> str:
    """The first result that is off or has other bits in a second call, or ""."""
    import torch

    doubled = [x.double() if x.is_floating_point() or x.dtype == torch.int8 else x for x in operands]
    expected = (program.exact or program.formula)(*doubled)
    runs = [[program.compared(x.clone()) for x in program.ours(*operands)] for _ in range(2)]
    for number, (found, again, want) in enumerate(zip(*runs, expected, strict=True)):
        if not torch.equal(found.view(torch.uint8), again.view(torch.uint8)):
            return f"result {number} has other bits in a second call"
        if found.dtype == torch.int32:
            off, allowed = float((found != want).double().mean()), OTHER_INDICES
        else:
            off = float((found.double() - want.double()).abs().max() / want.double().abs().max())
            allowed = {torch.bfloat16: BF16_ERROR, torch.float8_e4m3fn: E4M3_ERROR}.get(found.dtype, F32_ERROR)
        if not off <= allowed:
            return f"result {number} is off by {off:.3g}"
    return ""


def tiles_of(name: str, program: Program, operands: Operands, jobs: int | None) -> dict[str, Call]:
    """Ours by other configurations: those that compile, `jobs` at once, and whose results are ours.

    Indices and values of 8 bits may differ from ours where `fault` lets them.
    """
    if program.tiled is None:
        return {}
    with ThreadPoolExecutor(jobs) as pool:  # each thread's call has its kernel compiled by a process of its own
        asked = {
            label: pool.submit(program.tiled, *operands, config=config) for label, config in of_programs(name).items()
        }
    found: dict[str, Call] = {}
    for label, future in asked.items():
        call = functools.partial(program.tiled, config=of_programs(name)[label])
        if error := future.exception():
            said = str(error).splitlines()[0][:160]
        else:
            said = fault(replace(program, ours=call), operands)
        if said:
            print(f"    {label}: {said}", flush=True)
        else:
            found[f"{OURS}, {label}"] = call
    return found


def contenders(
    program: Program, sets: Sequence[Operands], tiles: Mapping[str, Call] | None = None
) -> dict[str, list[Launch]]:
    """Calls by name, one for each set. Those that fail are left out and say so."""
    import torch

    calls: dict[str, Callable[..., Any]] = {OURS: program.ours, EAGER: program.formula, ALONE: program.alone}
    calls |= tiles or {}
    calls |= {
        f"torch.compile {mode}": torch.compile(program.formula, mode=mode, dynamic=False) for mode in program.modes
    }
    if program.quack is not None:
        calls[QUACK] = program.quack
    made: dict[str, list[Launch]] = {}
    for name, call in calls.items():
        attempt(made, name, [functools.partial(call, *operands) for operands in sets])
    return made


def ratios(us: Mapping[str, float]) -> tuple[float, float | None]:
    """The time of torch's fastest form over ours, and quack's.

    >>> ratios({"ours": 2.0, "eager": 9.0, "torch.compile default": 5.0, "quack": 3.0, "product alone": 1.0})
    (2.5, 1.5)
    """
    torch_best = min(value for name, value in us.items() if name == EAGER or name.startswith("torch.compile"))
    return torch_best / us[OURS], us[QUACK] / us[OURS] if QUACK in us else None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--size", type=int, nargs="*", default=list(SIZES), help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tiles", action="store_true", help="other configurations too")
    parser.add_argument("--jobs", type=int, help="of them compiled at once")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(PROGRAMS)}")
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    torch._dynamo.config.cache_size_limit = 64
    device = CudaDevice()
    record: dict[str, Any] = {"machine": machine.facts(), "faults": {}, "programs": {}}
    for size in options.size:
        for name in options.programs or PROGRAMS:
            torch.manual_seed(0)
            program = PROGRAMS[name](size)
            sets = [program.operands("cuda") for _ in range(SETS)]
            said = fault(program, sets[0])
            torch.cuda.empty_cache()
            tiles = tiles_of(name, program, sets[0], options.jobs) if options.tiles and not said else {}
            torch.cuda.empty_cache()
            us = microseconds(device, contenders(program, sets, tiles), options.rounds)
            record["programs"].setdefault(name, []).append({"size": size, "sizes": program.sizes, "us": us})
            if said:
                record["faults"][f"{name} {size}"] = said
            by_torch, by_quack = ratios(us)
            quack = "" if by_quack is None else f", {by_quack:.3f} of quack"
            print(f"{name} {size}: {said or 'right'}; {by_torch:.3f} of torch{quack}; {us}", flush=True)
            del sets
            torch.cuda.empty_cache()
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if record["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
