"""The soak's further products: gated, with user epilogues, scaled, grouped.

form      call                                                                   compared with
--------  ---------------------------------------------------------------------  ---------------------------------
gated     matmul(a, b, activation="swiglu" or "geglu")                           float64, and what the gate may err
own       matmul(a, b, epilogue=, given=): a traced function of x, i and j        float64; integers to the bit
scaled    scaled_matmul(a, scale_a, b, scale_b), scales powers of two             float64; integers to the bit
grouped   grouped_matmul(a, b, offsets), groups of any size, some empty           float64; integers to the bit
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from layoutgemm import grouped_matmul, matmul, scaled_matmul
from layoutgemm.dtypes import dtype
from layoutgemm.kernels.compile.worker import Kernel
from layoutgemm.kernels.epilogue.chain import Custom, Epilogue, EpilogueOperand
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.torch_op.bias_activation import ACTIVATIONS, GATES
from layoutgemm.torch_op.epilogue import finish_of, spread
from layoutgemm.torch_op.prepared import problem_of
from layoutgemm.torch_op.problem import Problem, contiguous_strides, gated_shapes, shapes_of
from layoutgemm.torch_op.problem import StridedOperand as Strided
from layoutgemm.torch_op.solver import solve, why_unfused
from layoutgemm.torch_op.types import C_NAMES

SHARES = {"gated": 0.07, "own": 0.07, "scaled": 0.12, "grouped": 0.08}  # of the cases of types that have the form
MOST = {"gated": 0.08, "own": 0.08, "scaled": 0.05, "grouped": 0.05}  # of all cases that are run
GAIN = 2.0  # bound on how much a function below enlarges a difference of accumulators
DEPTH = 128  # of K, that share a scale
_SCALE = EpilogueOperand("scale", "n", dtype("f32"))
# the function as a kernel traces it, the same on torch's tensors, and what it reads
OWN: tuple[tuple[Epilogue, Callable[..., Any]], ...] = (
    (
        Epilogue(Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, -1.0))),
        lambda x, i, j, scale: torch.where(j <= i, x, -1.0),
    ),
    (
        Epilogue(Custom.of(lambda x, i, j, ops: ops.where((i + 2 * j) % 3 == 0, 2.0 * x, ops.maximum(x, 0.0)))),
        lambda x, i, j, scale: torch.where((i + 2 * j) % 3 == 0, 2 * x, torch.relu(x)),
    ),
    (
        Epilogue(Custom.of(lambda x, i, j, ops, scale: x * scale + ops.float((i + j) % 4), _SCALE)),
        lambda x, i, j, scale: x * scale + (i + j) % 4,
    ),
)
# rows that share a scale of A, columns that share one of B; fewer kinds than there could be, each a kernel to compile
SCALES = ((1, None), (1, 128), (128, 1))


def draw_form(rng: random.Random, kind: Any) -> str:
    """A random form for that type, with the number of a gated or own one."""
    roll, forms = rng.random(), list(SHARES)
    if kind not in (torch.bfloat16, torch.float8_e4m3fn):
        forms.remove("grouped")
    if kind != torch.float8_e4m3fn:
        forms.remove("scaled")
    wide = {"gated": len(GATES), "own": len(OWN), "scaled": len(SCALES), "grouped": 1}
    for form in forms:
        roll -= SHARES[form]
        if roll < 0:
            return f"{form} {rng.randrange(wide[form])}"
    return "plain"


def extras(case: Any, device: str) -> dict[str, Any]:
    """The case's further operands, reproducible by number."""
    name, which = case.form.split()
    generator = torch.Generator().manual_seed(case.number)
    m, n, k = case.sizes
    blocks, front = -(-k // DEPTH), case.batches[0]

    def powers(*shape: int) -> Any:
        return 2.0 ** torch.randint(-1, 2, shape, generator=generator).float()

    found: dict[str, Any] = {}
    if name == "own" and OWN[int(which)][0].given:
        found["scale"] = torch.randint(-2, 3, (n,), generator=generator).float()
    elif name == "scaled":
        rows, columns = SCALES[int(which)]
        found["scale_a"] = powers(*front, -(-m // rows), blocks)
        if columns is not None:
            found["scale_b"] = powers(*front, -(-n // columns), blocks)
    elif name == "grouped":
        inner = torch.randint(0, m + 1, (case.batches[1][0] - 1,), generator=generator).sort().values
        ends = torch.cat([torch.tensor([0]), inner, torch.tensor([m])])
        found["offsets"] = ends.to(torch.int32 if case.types[0] == torch.bfloat16 else torch.int64)
    return {key: x.to(device) for key, x in found.items()}


def call(case: Any, a: Any, b: Any, out: Any, extra: dict[str, Any]) -> Any:
    """The product by the library."""
    name, which = case.form.split()
    kind = case.types[2]
    if name == "scaled":
        return scaled_matmul(a, extra["scale_a"], b, extra.get("scale_b"), out_dtype=kind)
    if name == "grouped":
        return grouped_matmul(a, b, extra["offsets"], out_dtype=kind)
    options = {"out": out, "config": case.config, "out_dtype": kind, "allow_tf32": True}
    if name == "gated":
        return matmul(a, b, activation=list(GATES)[int(which)], **options)
    return matmul(a, b, epilogue=OWN[int(which)][0], given=extra, **options)


def result_shape(case: Any, a: Any, b: Any) -> tuple[int, ...]:
    """The shape of a matmul of the case's operands."""
    return gated_shapes(a.shape, b.shape, "silu" if case.form.startswith("gated") else None).result


def wanted(case: Any, a: Any, b: Any, extra: dict[str, Any], bound: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The result in float64, and the kernel's error bound before rounding to C's type.

    bound  what a sum may differ by, from the sum of the magnitudes of its terms
    """
    name, which = case.form.split()
    a, b = a.double(), b.double()
    if name == "grouped":
        ends = extra["offsets"].tolist()
        pieces = [(a[first:end], b[e]) for e, (first, end) in enumerate(pairwise(ends))]
        return torch.cat([x @ y for x, y in pieces]), bound(torch.cat([x.abs() @ y.abs() for x, y in pieces]))
    if name == "scaled":
        rows, columns = SCALES[int(which)]
        a = a * _spread(extra["scale_a"], rows, a)
        if columns is not None:
            b = b * _spread(extra["scale_b"], columns, b.mT).mT
    sums, error = torch.matmul(a, b), bound(torch.matmul(a.abs(), b.abs()))
    if name == "scaled":
        return sums, error
    if name == "own":
        i = torch.arange(sums.shape[-2], device=sums.device)[:, None]
        j = torch.arange(sums.shape[-1], device=sums.device)[None, :]
        return OWN[int(which)][1](sums, i, j, extra.get("scale", 0.0)), GAIN * error
    gate, up = sums.chunk(2, -1)
    of_gate, of_up = error.chunk(2, -1)
    acted = ACTIVATIONS[list(GATES.values())[int(which)]](gate)
    # neither function is steeper than 1.13; the kernel's own are the hardware's where C keeps few bits
    of_act = 1.13 * of_gate + (2.0**-17 if case.types[2] == torch.float32 else 2.0**-9) * gate.abs()
    return acted * up, of_act * (up.abs() + of_up) + acted.abs() * of_up


def _spread(scale: Any, group: int, like: Any) -> Any:
    rows, k = like.shape[-2:]
    return scale.double().repeat_interleave(group, -2)[..., :rows, :].repeat_interleave(DEPTH, -1)[..., :k]


def exact(case: Any) -> bool:
    """True if small integers must give exact results."""
    return not case.form.startswith("gated")


def problem_and_words(
    case: Any, a: Any, b: Any, c: Any, config: Any, gpu: tuple[ClusterOccupancy, str]
) -> tuple[Problem, Any]:
    """A gated or own case's first problem and its epilogue parameters. The problem is of all columns if no kernel
    gates."""
    name, which = case.form.split()
    if name == "gated":
        gated = list(GATES.values())[int(which)]
        problem = problem_of(a, b, c, config, *gpu, gated=gated)
        if not why_unfused(problem):
            return problem, ()
        shape = shapes_of(tuple(a.shape), tuple(b.shape)).result
        return problem_of(a, b, Strided(shape, contiguous_strides(shape), "f32"), config, *gpu), ()
    epilogue = OWN[int(which)][0]
    a, b, c, given = next(iter(spread(a, b, c, epilogue, extras(case, "cpu"))))
    finish = finish_of(epilogue, given, c.shape)
    return problem_of(a, b, c, config, *gpu, finish.epilogue, finish.keep_batch_separate), finish.words


def kernel_of_form(
    case: Any, a: Any, b: Any, out: Any, config: Any, gpu: tuple[ClusterOccupancy, str]
) -> tuple[Kernel | None, int]:
    """The case's kernel, if it is one of matmul's, and its number of copies."""
    if case.form.split()[0] in ("scaled", "grouped"):
        return None, 0
    shape = result_shape(case, a, b)
    if 0 in (*shape, case.sizes[2]):
        return None, 0
    if out is None:
        out = torch.empty(shape, dtype=case.types[2])
    assert case.types[2] in C_NAMES
    found = solve(problem_and_words(case, a, b, out, config, gpu)[0])
    return found.kernel, sum(copy is not None for copy in found.copies)


def signature(case: Any) -> tuple[Any, ...] | None:
    """The kernel's key of a scaled or grouped case; the first call compiles it."""
    name = case.form.split()[0]
    if name not in ("scaled", "grouped") or 0 in case.sizes:
        return None
    m = case.sizes[0]
    small = m <= 64 if name == "scaled" else -(-m // case.batches[1][0]) <= 96
    return case.form, case.types, case.layouts[1] == "col", bool(case.batches[0]), small
