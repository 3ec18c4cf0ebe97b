"""Functions of several products, and sums of two, against torch.compile: checked, then timed.

    python benchmarks/bench_operands.py --json operands.json        # on the GPU, about five minutes
    python benchmarks/bench_operands.py --parts pairs --rounds 7

- checks: ragged sizes, types and orders against float64, each twice for equal bits, and gradients.
- combined: `matmul(a, (b0, b1, ...), combine=)` in the chosen tile and in others.
- pairs: `matmul((x, h), (w, u))`, a layer with a low-rank update, and x @ w alone.

torch.compile runs the same formula in its default mode. "torch.compile, f32" converts the bf16 products to float32
first.

Times are bursts by `layoutgemm/bench/method.py`: CUDA graphs of four calls over two sets of random normal operands. The
record is written after each size.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import layoutgemm
from benchmarks import needs
from benchmarks.timing import microseconds
from layoutgemm.bench.method import CudaDevice
from layoutgemm.kernels.sm90.plan import Sm90Config

if TYPE_CHECKING:
    import torch

Size = tuple[int, int, int]  # M, N, K
Calls = dict[str, Callable[..., Any]]  # contenders by name, each of one set of operands
PARTS = ("checks", "combined", "pairs")
RAGGED = ((1, 24, 72), (40, 200, 136), (72, 88, 136), (333, 1000, 520), (2048, 1544, 1096), (4097, 2056, 1032))
UNALIGNED = (333, 1001, 333)  # rows that tensor copies cannot read: copied
TIMED = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (64, 14336, 4096))
PAIRS = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (64, 4096, 4096))
RANKS = (16, 128)
TILES = (((128, 256), (2, 1)), ((256, 208), (1, 2)), ((256, 224), (2, 1)), ((256, 192), (1, 2)))  # tile, cluster
CALLS, SETS = 4, 2  # in a graph


# Formulas -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """A function of products: as layoutgemm takes it, and of torch tensors.

    degree  how many products its terms multiply, for the scale of an error
    """

    combine: Any
    plain: Callable[..., Any]
    count: int = 2
    degree: int = 2
    given: Mapping[str, float] = field(default_factory=dict)


def blend(p: Any, q: Any, ops: Any, s: Any) -> Any:
    """A weighted sum, the weight a number of the launch."""
    return p + s * q


def three(x: Any, y: Any, z: Any, ops: Any) -> Any:
    """A product and a sum."""
    return x * y + z


def four(w: Any, x: Any, y: Any, z: Any, ops: Any) -> Any:
    """The positive part of a determinant."""
    return ops.maximum(w * x - y * z, 0.0)


def formulas() -> dict[str, Formula]:
    """The formulas by name."""
    import torch

    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    return {
        "silu": Formula("silu", lambda g, u: silu(g) * u),
        "gelu": Formula("gelu", lambda g, u: gelu(g) * u),
        "blend": Formula(blend, lambda p, q: p + 0.5 * q, degree=1, given={"s": 0.5}),
        "three": Formula(three, lambda x, y, z: x * y + z, count=3),
        "four": Formula(four, lambda w, x, y, z: (w * x - y * z).clamp(min=0), count=4),
    }


# Correctness --------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """A result against float64. Holds the largest share of the allowed error, and whether a second run gave its
    bits."""

    name: str
    worst: float
    repeats: bool = True

    @property
    def right(self) -> bool:
        """False for NaN too."""
        return self.worst <= 1 and self.repeats


def matrix(rows: int, columns: int, order: str, kind: torch.dtype, device: str) -> torch.Tensor:
    """Random normal values, rows ("r") or columns ("c") contiguous."""
    import torch

    shape = (rows, columns) if order == "r" else (columns, rows)
    made = torch.randn(*shape, device=device).to(kind)
    return made if order == "r" else made.T


def compared(name: str, call: Callable[[], Any], want: torch.Tensor, scale: float, kind: torch.dtype) -> Check:
    """Compares two runs. They may differ by one rounding of the result, and `scale` times that of the operands'
    products."""
    import torch

    c, again = call(), call()
    unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-23}[c.dtype]
    loose = 2**-9 if kind == torch.float32 else 2**-16  # float32 operands are read as TF32
    worst = float(((c.double() - want).abs() / (unit * want.abs() + loose * scale + 1e-6)).max())
    return Check(name, worst, torch.equal(c, again))


def check_combined(
    name: str, formula: Formula, size: Size, order: str, kind: torch.dtype, device: str, **more: Any
) -> Check:
    """A function of products; `more` are arguments of matmul."""

    m, n, k = size
    a = matrix(m, k, "r", kind, device)
    b = [matrix(k, n, order, kind, device) for _ in range(formula.count)]
    call = functools.partial(
        layoutgemm.matmul, a, tuple(b), combine=formula.combine, given=dict(formula.given), allow_tf32=True, **more
    )
    sums = [a.double() @ x.double() for x in b]
    scale = max(float(each.abs().max()) for each in sums) ** formula.degree
    title = f"{name} {'x'.join(map(str, size))} {order} {kind}"
    return compared(title, call, formula.plain(*sums), scale, kind)


def check_pair(size: Size, rank: int, orders: str, kind: torch.dtype, device: str, **more: Any) -> Check:
    """A sum of two products; `orders` are those of the left and the right matrices."""
    import torch

    m, n, k = size
    x, h = (matrix(m, depth, orders[0], kind, device) for depth in (k, rank))
    w, u = (matrix(depth, n, orders[1], kind, device) for depth in (k, rank))
    call = functools.partial(layoutgemm.matmul, (x, h), (w, u), allow_tf32=True, **more)
    want = x.double() @ w.double() + h.double() @ u.double()
    want = want if more.get("bias") is None else want + more["bias"].double()
    want = torch.nn.functional.gelu(want) if more.get("activation") else want
    title = f"pair {'x'.join(map(str, size))} rank {rank} {orders} {kind} {' '.join(more)}"
    return compared(title, call, want, float(want.abs().max()), kind)


def check_gradients(size: Size, device: str) -> Check:
    """Derivatives of a gated product; the largest error, relative to the gradient's largest, may be 0.02."""
    import torch

    m, n, k = size
    x, *w = (
        each.requires_grad_()
        for each in (matrix(*s, torch.bfloat16, device) for s in [(m, k, "r"), *[(k, n, "c")] * 2])
    )
    g = matrix(m, n, "r", torch.bfloat16, device)
    found = torch.autograd.grad(layoutgemm.matmul(x, tuple(w), combine="silu"), [x, *w], g)
    exact = [each.detach().double().requires_grad_() for each in (x, *w)]
    product = formulas()["silu"].plain(exact[0] @ exact[1], exact[0] @ exact[2])
    wanted = torch.autograd.grad(product, exact, g.double())
    off = [float((p.double() - q).abs().max() / q.abs().max()) for p, q in zip(found, wanted, strict=True)]
    return Check(f"gradients {'x'.join(map(str, size))}", max(off) / 0.02)


def checks(sizes: Sequence[Size], device: str) -> Iterator[Check]:
    """All checks of these sizes, then those of fixed ones."""
    import torch

    bf16, made = torch.bfloat16, formulas()
    for size in sizes:
        for name, formula in made.items():
            yield check_combined(name, formula, size, "c", bf16, device)
        yield check_combined("silu", made["silu"], size, "r", bf16, device)
        yield check_combined("three", made["three"], size, "r", torch.float16, device, out_dtype=torch.float32)
        bias = torch.randn(size[1], device=device)
        for orders in ("rc", "rr", "cc"):
            yield check_pair(size, 16, orders, bf16, device, bias=bias)
        yield check_pair(size, 136, "rc", bf16, device, activation="gelu")
        yield check_pair(size, 24, "rc", torch.float32, device)
    yield check_combined("silu", made["silu"], UNALIGNED, "c", bf16, device)
    yield check_combined("silu", made["silu"], (333, 1008, 336), "c", torch.float32, device)
    yield check_pair(UNALIGNED, 7, "rc", bf16, device)
    asked = Sm90Config((128, 256), cluster=(2, 1))
    yield check_combined("blend", made["blend"], (512, 1024, 512), "c", bf16, device, config=asked)
    yield check_pair((512, 1024, 512), 16, "rc", bf16, device, config=asked)
    yield check_gradients((640, 768, 512), device)


# Timing -------------------------------------------------------------------------------------------------------------


def combined_calls(name: str, formula: Formula, size: Size) -> Calls:
    """Contenders of a combined product, each of (a, b0, b1, ...)."""
    import torch

    plain, given = formula.plain, dict(formula.given)

    def ours(*s: torch.Tensor, **more: Any) -> torch.Tensor:
        return layoutgemm.matmul(s[0], s[1:], combine=formula.combine, given=given, **more)

    calls: Calls = {
        "ours": ours,
        "torch.compile": torch.compile(lambda a, *b: plain(*[a @ x for x in b]), dynamic=False),
        "torch.compile, f32": torch.compile(
            lambda a, *b: plain(*[(a @ x).float() for x in b]).bfloat16(), dynamic=False
        ),
    }
    if name == "silu":
        beside = functools.cache(lambda *b: torch.cat([x.T for x in b]).T)  # made at the first call, before the graph
        calls["ours, one matrix"] = lambda a, *b: layoutgemm.matmul(a, beside(*b), activation="swiglu")
    for tile, cluster in TILES if size[0] >= 4096 else ():
        if tile[1] % (8 * formula.count) == 0:
            config = Sm90Config(tile, cluster=cluster, buffers=2 if tile[0] == 128 else 1)
            calls[f"ours {tile} {cluster}"] = functools.partial(ours, config=config)
    return calls


def pair_calls() -> Calls:
    """Contenders of a sum of two products, each of (x, h, w, u)."""
    import torch

    return {
        "ours": lambda x, h, w, u: layoutgemm.matmul((x, h), (w, u)),
        "torch.compile": torch.compile(lambda x, h, w, u: x @ w + h @ u, dynamic=False),
        "torch.compile, addmm": torch.compile(lambda x, h, w, u: torch.addmm(x @ w, h, u), dynamic=False),
        "ours, x @ w alone": lambda x, h, w, u: layoutgemm.matmul(x, w),
    }


def timed(device: CudaDevice, calls: Calls, sets: Sequence[Sequence[Any]], rounds: int) -> dict[str, float]:
    """The median us of each contender's call."""
    turns = [sets[i % len(sets)] for i in range(CALLS)]
    loops = {name: [functools.partial(call, *operands) for operands in turns] for name, call in calls.items()}
    return microseconds(device, loops, rounds)


def combined_rows(device: CudaDevice, rounds: int) -> Iterator[dict[str, Any]]:
    """Times of each formula and size."""
    import torch

    made = formulas()
    for name in ("silu", "blend", "four"):
        formula = made[name]
        for m, n, k in TIMED:
            shapes = [(m, k, "r"), *[(k, n, "c")] * formula.count]
            sets = [[matrix(*shape, torch.bfloat16, "cuda") for shape in shapes] for _ in range(SETS)]
            us = timed(device, combined_calls(name, formula, (m, n, k)), sets, rounds)
            a, *b = sets[0]
            how = layoutgemm.explain_matmul(a, tuple(b), combine=formula.combine, given=dict(formula.given))
            yield {"formula": name, "size": [m, n, k], "us": us, "why": how.why}


def pair_rows(device: CudaDevice, rounds: int) -> Iterator[dict[str, Any]]:
    """Times of each size and rank."""
    import torch

    for m, n, k in PAIRS:
        for rank in RANKS:
            shapes = [(m, k, "r"), (m, rank, "r"), (k, n, "c"), (rank, n, "c")]
            sets = [[matrix(*shape, torch.bfloat16, "cuda") for shape in shapes] for _ in range(SETS)]
            us = timed(device, pair_calls(), sets, rounds)
            x, h, w, u = sets[0]
            why = layoutgemm.explain_matmul((x, h), (w, u)).why
            yield {"formula": f"x @ w + h @ u, rank {rank}", "size": [m, n, k], "us": us, "why": why}


def ratio(us: Mapping[str, float]) -> float:
    """The time of torch's faster form over ours.

    >>> ratio({"ours": 2.0, "torch.compile": 5.0, "torch.compile, f32": 4.0, "ours (128, 256) (2, 1)": 1.0})
    2.0
    """
    return min(time for name, time in us.items() if name.startswith("torch.compile")) / us["ours"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="of checks, combined, pairs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    from layoutgemm.bench import machine

    torch.manual_seed(0)
    torch._dynamo.config.cache_size_limit = 64  # one code object serves every formula and size
    device, wrong = CudaDevice(), list[list[Any]]()
    record: dict[str, Any] = {"machine": machine.facts(), "wrong": wrong, "times": []}
    for check in checks(RAGGED, "cuda") if "checks" in parts else ():
        print("ok   " if check.right else "WRONG", check.name, f"{check.worst:.3f} of the bound", flush=True)
        wrong += [] if check.right else [list(check)]
    with torch.no_grad():
        for part, rows in (("combined", combined_rows), ("pairs", pair_rows)):
            for row in rows(device, options.rounds) if part in parts else ():
                record["times"].append(row)
                print(f"{ratio(row['us']):.3f} {row['formula']} {row['size']} {row['us']}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
