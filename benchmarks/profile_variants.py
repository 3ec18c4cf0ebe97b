"""Nsight Compute's counters of scaled and grouped kernels beside DeepGEMM's.

    python benchmarks/profile_variants.py scaled:4096x2112x7168 "grouped, scaled:4x32768x4096x2048" --json FILE

Products are those of `bench_variants.py`, by their kind and sizes; a result of ours is compared with float64 first. The
columns are those of `profile_gemm.py`: one launch each, after one for warm-up, with cold caches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import bench_variants, needs
from benchmarks.profile_gemm import counted, profiled

Product = tuple[str, tuple[int, ...]]


def product(text: str) -> Product:
    """A kind and its sizes.

    >>> product("grouped, scaled:4x32768x4096x2048")
    ('grouped, scaled', (4, 32768, 4096, 2048))
    """
    kind, _, sizes = text.rpartition(":")
    if kind not in bench_variants.KINDS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a kind of {', '.join(bench_variants.KINDS)}, a colon and its sizes"
        )
    try:
        return kind, tuple([int(size) for size in sizes.split("x")])
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are numbers with x between") from error


def launch(products: Sequence[Product], names: Sequence[str]) -> None:
    """Make the launches under ncu."""
    import torch

    for kind, sizes in products:
        torch.manual_seed(0)
        form, with_scales = kind.partition(",")[0], kind.endswith("scaled")
        calls, error = bench_variants.FORMS[form](sizes, with_scales, 0)
        title = f"{kind} {'x'.join(map(str, sizes))}"
        if not error <= 1:
            print(f"@failed {title}: {error:.2f} of the bound", file=sys.stderr, flush=True)
            continue
        for name in names:
            if name in calls:
                run = calls[name][0]
                run()
                torch.cuda.synchronize()
                profiled(f"{title}|{name}", run)
        del calls
        torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without a GPU or ncu. Raises RuntimeError without kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("products", nargs="+", help="a kind of bench_variants.py, a colon and its sizes")
    parser.add_argument("--contender", default="ours;deepgemm", help="names, with semicolons between")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--patience", type=float, default=500.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        products = [product(text) for text in options.products]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if status := needs.refused(needs.no_gpu(), None if options.launch else needs.no_tool(options.ncu)):
        return status
    if options.launch:
        launch(products, options.contender.split(";"))
        return 0
    words = ["--launch", *options.products, "--contender", options.contender]
    return counted(options.ncu, Path(__file__), words, options.patience, options.json)


if __name__ == "__main__":
    sys.exit(main())
