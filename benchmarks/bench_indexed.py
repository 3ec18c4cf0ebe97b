"""Gathered and scattered rows on a GPU: compared with float64, then timed beside torch.

    python benchmarks/bench_indexed.py --json FILE          # on a Hopper GPU, about two minutes

Products of rows by index, gathered in the kernel and copied first, stand beside index_select and a product. So do
scatters beside a product and index_copy_, and groups, as in a mixture of experts. A wrong result, a row outside of the
output's, or other bits in a second run end the program with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.timing import microseconds
from layoutgemm import Sm90Config, grouped_matmul, matmul
from layoutgemm.bench import machine
from layoutgemm.bench.method import CudaDevice

LOADER = Sm90Config((128, 256), loader="warpgroup", chunks=1, buffers=2)
CONFIGS = {
    "128x256": LOADER,
    "128x256 cluster 2x1": Sm90Config((128, 256), cluster=(2, 1), loader="warpgroup", chunks=1, buffers=2),
    "64x256": Sm90Config((64, 256), consumers=1, loader="warpgroup", chunks=1, buffers=2),
}
BYTES = 240e6  # of operands in rotation: more than the L2 cache holds


class Shape(NamedTuple):
    """Rows of C, N, K, rows of A, and groups; 0 groups are one product."""

    m: int
    n: int
    k: int
    source: int
    groups: int = 0

    def __str__(self) -> str:
        groups = f", {self.groups} groups" if self.groups else ""
        return f"{self.m}x{self.n}x{self.k} of {self.source} rows{groups}"


CHECKED = (Shape(1000, 776, 520, 333), Shape(2048, 1024, 4096, 5000), Shape(3000, 776, 1032, 900, 7))
TIMED = (
    Shape(8192, 4096, 4096, 8192), Shape(4096, 14336, 4096, 16384), Shape(16384, 8192, 2048, 32768),
    Shape(1024, 4096, 4096, 8192), Shape(128, 4096, 4096, 8192), Shape(8192, 14336, 4096, 4096, 8),
    Shape(8192, 4096, 14336, 4096, 8), Shape(24576, 2816, 2048, 4096, 64), Shape(24576, 2048, 1408, 4096, 64),
    Shape(8192, 1536, 2048, 1024, 128), Shape(512, 1536, 2048, 64, 128),
)  # fmt: skip


class Operands(NamedTuple):
    """Operands of a shape. They are A, B, the offsets of groups, indices of A's and of C's rows, factors, and room."""

    a: Any
    b: Any
    offsets: Any
    rows: Any
    out_rows: Any
    weights: Any
    out: Any
    selected: Any

    def ours(self, a: Any = None, out: Any = None, **more: Any) -> Any:
        """Our product of A, or of another matrix in its place."""
        left = self.a if a is None else a
        if self.offsets is None:
            return matmul(left, self.b, out=out, **more)
        return grouped_matmul(left, self.b, self.offsets, out=out, **more)

    def theirs(self) -> Any:
        """torch's product of the selected rows."""
        import torch

        if self.offsets is None:
            return torch.mm(self.selected, self.b)
        return torch._grouped_mm(self.selected, self.b, offs=self.offsets[1:])


def operands(shape: Shape, seed: int, device: str = "cuda") -> Operands:
    """Random operands. Rows of C are a permutation, each named once."""
    import torch

    on: dict[str, Any] = {"device": device, "generator": torch.Generator(device).manual_seed(seed)}
    m, n, k, source, groups = shape
    a = torch.randn(source, k, **on).bfloat16()
    b = torch.randn(*((groups,) if groups else ()), n, k, **on).bfloat16().mT
    offsets = None
    if groups:
        cuts = torch.randint(0, m + 1, (groups - 1,), **on).sort().values
        offsets = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), m)]).int()
    rows = torch.randint(0, source, (m,), **on).int()
    room, selected = (torch.empty(m, size, device=device, dtype=torch.bfloat16) for size in (n, k))
    return Operands(a, b, offsets, rows, torch.randperm(m, **on).int(), torch.rand(m, **on), room, selected.normal_())


def exact(x: Operands) -> Any:
    """The product of A's named rows in float64, in order."""
    import torch

    read = x.a[x.rows.long()].double()
    if x.offsets is None:
        return read @ x.b.double()
    ends = x.offsets.tolist()
    return torch.cat([read[i:j] @ x.b[e].double() for e, (i, j) in enumerate(pairwise(ends))])


def fault(shape: Shape, config: Sm90Config | None, copies: bool | None = None) -> str:
    """The first fault of the products of a shape, or "". Some indices name no row."""
    import torch

    x = operands(shape, 1)
    want = exact(x)
    bound = 2.0**-8 * want.abs() + 2.0**-7 * shape.k**0.5
    got = x.ours(rows=x.rows, config=config, copy_rows=copies)
    if wrong := int(((got.double() - want).abs() > bound).sum()):
        return f"{wrong} gathered elements are wrong"
    if not torch.equal(got, x.ours(rows=x.rows, config=config, copy_rows=copies)):
        return "a second run gave other bits"
    rows, out_rows = x.rows.clone(), x.out_rows.clone()
    rows[::7], out_rows[3::11], out_rows[5::11] = shape.source, -1, shape.m
    out = torch.full((shape.m, shape.n), 7.0, device="cuda", dtype=torch.bfloat16)
    x.ours(out=out, rows=rows, out_rows=out_rows, row_weights=x.weights, config=config, copy_rows=copies)
    named = (out_rows >= 0) & (out_rows < shape.m)
    value = torch.where((rows < shape.source)[:, None], want, 0.0) * x.weights.double()[:, None]
    found = out[out_rows[named].long()].double()
    if wrong := int(((found - value[named]).abs() > bound[named]).sum()):
        return f"{wrong} scattered elements are wrong"
    left = torch.ones(shape.m, dtype=torch.bool, device="cuda")
    left[out_rows[named].long()] = False
    return "" if bool((out[left] == 7).all()) else "rows that no index names were written"


def contenders(x: Operands) -> dict[str, Callable[[], object]]:
    """Calls by name."""
    import torch

    def select() -> object:
        return torch.index_select(x.a, 0, x.rows, out=x.selected)

    def copied() -> object:
        return x.out.index_copy_(0, x.out_rows.long(), x.ours(x.selected))

    found: dict[str, Callable[[], object]] = {
        "gather": lambda: x.ours(out=x.out, rows=x.rows, copy_rows=False),
        "copied first": lambda: x.ours(out=x.out, rows=x.rows, copy_rows=True),
        "gather, scatter, factors": lambda: x.ours(
            out=x.out, rows=x.rows, out_rows=x.out_rows, row_weights=x.weights, copy_rows=False
        ),
        "scatter": lambda: x.ours(x.selected, x.out, out_rows=x.out_rows),
        "rows in order": lambda: x.ours(x.selected, x.out),
        "index_select": select,
        "index_select, ours": lambda: (select(), x.ours(x.selected, x.out)),
        "index_select, torch": lambda: (select(), x.theirs()),
        "ours, index_copy_": copied,
    }
    for name, config in CONFIGS.items():
        found[f"gather {name}"] = lambda config=config: x.ours(out=x.out, rows=x.rows, config=config)
    return found


def times(device: CudaDevice, shape: Shape, rounds: int) -> dict[str, float]:
    """Microseconds of each contender, from graphs of calls in rotation."""
    import torch

    each = 2 * (shape.source * shape.k + max(shape.groups, 1) * shape.n * shape.k + shape.m * (shape.n + shape.k))
    sets = [contenders(operands(shape, seed)) for seed in range(max(2, int(BYTES / each) + 1))]
    loops = {}
    for name in sets[0]:
        launches = [one[name] for one in sets]
        for launch in launches * 2:
            launch()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for launch in launches:
            launch()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) / len(launches)
        loops[name] = launches * max(1, round(5e-3 / seconds / len(launches)))
    return microseconds(device, loops, rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    import torch

    record: dict[str, Any] = {"machine": machine.facts(), "faults": [], "us": {}}
    print(record["machine"], flush=True)
    for shape in CHECKED:
        ways: tuple[tuple[str, Sm90Config | None, bool | None], ...] = (
            ("chosen", None, None), ("gathered", None, False), ("copied first", None, True),
            *[(name, config, False) for name, config in CONFIGS.items()],
        )  # fmt: skip
        for name, config, copies in ways:
            if found := fault(shape, config, copies):
                record["faults"].append(f"{shape}, {name}: {found}")
            print(f"{shape}, {name}: {found or 'right'}", flush=True)
    device = CudaDevice()
    for shape in TIMED:
        record["us"][str(shape)] = found_times = times(device, shape, options.rounds)
        print(shape, dict(sorted(found_times.items(), key=lambda item: item[1])), flush=True)
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if record["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
