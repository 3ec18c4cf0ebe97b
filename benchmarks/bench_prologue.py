"""Times products with a prologue beside torch.compile of the formula, and the product alone.

    python benchmarks/bench_prologue.py --json benchmarks/results/prologue_h200.json     # on the GPU, two minutes

The functions: a scale for each row; RMSNorm's, with a number for each row and each column; SiLU as x * sigmoid(x).
Each result is first compared with float64 on 128 random rows. Contenders get the same operands: several sets in turn,
in one CUDA graph. Times are bursts by `layoutgemm/bench/method.py`. "product alone" is `matmul` of A as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.timing import microseconds
from layoutgemm import matmul
from layoutgemm.bench.method import CudaDevice, Launch
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.sm90.choose.prologue import prologue_config

if TYPE_CHECKING:
    import torch

SIZES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (1024, 4096, 4096), (512, 4096, 4096), (256, 4096, 4096),
    (256, 8192, 8192), (128, 8192, 8192), (128, 4096, 14336), (64, 4096, 4096), (32, 28672, 4096), (16, 8192, 8192),
    (64, 7168, 2048),
)  # fmt: skip
ROUNDS, SET_BYTES, MOST_SETS, BURST = 7, 200 << 20, 16, 4e-3
ERROR = 2.0**-7  # of the largest value: A and C are rounded to bf16
FUNCTIONS = {
    "scaled rows": Prologue.of(lambda x, i, k, ops, rstd: x * rstd, rstd="m"),
    "RMSNorm": Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16"),
    "SiLU": Prologue.of(lambda x, i, k, ops: x * ops.sigmoid(x)),
}
Operands = tuple["torch.Tensor", ...]


def by_torch(name: str, x: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The function by torch, rounded to x's type."""
    import torch

    if name == "SiLU":
        return torch.nn.functional.silu(x)
    scaled = x.float() * rstd[:, None]
    return (scaled if name == "scaled rows" else scaled * w.float()).to(x.dtype)


def drawn(m: int, n: int, k: int) -> Operands:
    """A, B as (N, K), C, and numbers of rows and of columns."""
    import torch

    where = "cuda"
    a, b = (torch.randn(rows, k, device=where).bfloat16() for rows in (m, n))
    c = torch.empty(m, n, device=where, dtype=torch.bfloat16)
    return a, b, c, torch.rand(m, device=where) + 0.5, torch.rand(k, device=where).bfloat16()


def calls_of(name: str) -> dict[str, Callable[..., torch.Tensor]]:
    """The contenders, as functions of a set of operands."""
    import torch

    prologue = FUNCTIONS[name]
    compiled = torch.compile(lambda a, b, rstd, w: by_torch(name, a, rstd, w) @ b.T)

    def ours(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        given = {key: value for key, value in (("rstd", rstd), ("w", w)) if key in prologue.names}
        return matmul(a, b.T, prologue=prologue, given=given, out=c)

    return {
        "ours": ours,
        "product alone": lambda a, b, c, *_: matmul(a, b.T, out=c),
        "torch.matmul alone": lambda a, b, c, *_: torch.matmul(a, b.T, out=c),
        "torch.compile": lambda a, b, c, rstd, w: compiled(a, b, rstd, w),
    }


def timed(name: str, sizes: tuple[int, int, int], device: CudaDevice) -> dict[str, float]:
    """Microseconds of each contender; raises ValueError for a wrong result of ours."""
    import torch

    m, n, k = sizes
    torch.manual_seed(0)
    count = max(2, min(MOST_SETS, SET_BYTES // (2 * (m * k + n * k + m * n))))
    sets = [drawn(m, n, k) for _ in range(count)]
    calls = calls_of(name)
    a, b, _, rstd, w = sets[0]
    some = torch.randperm(m, device=a.device)[:128]
    want = by_torch(name, a, rstd, w)[some].double() @ b.double().T
    off = float((calls["ours"](*sets[0])[some].double() - want).abs().max() / want.abs().max())
    if not off <= ERROR:
        raise ValueError(f"{name} of {m}x{n}x{k}: an error of {off:.2e} of the largest value, of {ERROR:.2e} at most")
    repeats = max(1, round(BURST / (2 * m * n * k / 7e14 + 4e-6) / count))

    def loop(call: Callable[..., torch.Tensor]) -> list[Launch]:
        def launch(operands: Operands) -> Launch:
            return lambda: call(*operands)

        return [launch(operands) for operands in sets] * repeats

    return microseconds(device, {key: loop(call) for key, call in calls.items()}, ROUNDS)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    path = needs.record_file(__doc__, argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    from layoutgemm.bench import machine

    device, rows = CudaDevice(), []
    for sizes in SIZES:
        tile = prologue_config(*sizes)
        for name in FUNCTIONS:
            us = timed(name, sizes, device)
            rows.append({"mnk": sizes, "function": name, "tile": tile.tile, "parts of K": tile.split, "us": us})
            ratio = us["torch.compile"] / us["ours"]
            print(f"{'x'.join(map(str, sizes)):18} {name:12} {us}  torch.compile / ours {ratio:.3f}", flush=True)
    if path is not None:
        path.write_text(json.dumps({"machine": machine.facts(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
