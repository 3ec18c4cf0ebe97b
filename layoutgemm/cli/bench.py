"""`layoutgemm bench`: matmul against torch.mm on this machine's GPU, for the given shapes."""

from __future__ import annotations

import argparse
import gc
import json
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ..arguments import shown
from ..bench.method import BenchProblem
from ..bench.outcome import DETAILS, HEAD, details, line, record
from ..errors import LayoutError, OperandError
from .arguments import add, failed, one_line
from .commands import Commands

if TYPE_CHECKING:
    from ..bench.matmul import Comparison

EXAMPLES = (
    "layoutgemm bench 4096 4096 4096",
    "layoutgemm bench 8192,512x4096x14336 --peers --sustained",
    "layoutgemm bench 4096x14336x4096 --b-major n --rounds 21 --json",
)

Shape = tuple[int, int, int]


def shape(text: str) -> Shape:
    """M, N, K of "MxNxK"; one number is a square.

    >>> shape("512x6144x4096"), shape("4096")
    ((512, 6144, 4096), (4096, 4096, 4096))
    """
    if not re.fullmatch(r"\d+(x\d+x\d+)?", text):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not of the form MxNxK")
    sizes = [int(part) for part in text.split("x")]
    return (sizes[0], sizes[-1] if len(sizes) == 1 else sizes[1], sizes[-1])


def shapes(text: str) -> list[Shape]:
    """Comma-separated shapes."""
    return [shape(part) for part in text.split(",")]


def shapes_of(words: Sequence[str]) -> list[Shape]:
    """Command-line words as shapes: three numbers are M N K, else each word lists shapes.

    Raises OperandError.

    >>> shapes_of(["64", "128", "256"]), shapes_of(["64,8x16x32"])
    ([(64, 128, 256)], [(64, 64, 64), (8, 16, 32)])
    """
    if len(words) > 1 and all(word.isdecimal() for word in words):
        if len(words) != 3:
            raise OperandError(f"{' '.join(words)}: three numbers are M N K; squares are written {','.join(words)}")
        words = ["x".join(words)]
    try:
        return [sizes for word in words for sizes in shapes(word)]
    except argparse.ArgumentTypeError as error:
        raise OperandError(f"{error}; shapes are written M N K or MxNxK,MxNxK, one number a square") from None


def rounds(text: str) -> int:
    """A count of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number of rounds, 1 or more")
    return int(text)


def add_bench(commands: Commands) -> None:
    """The subcommand bench."""
    parser = add(
        commands, "bench", EXAMPLES, bench,
        says="Measures C = A @ B in bf16 on torch's current GPU: the kernel of layoutgemm.matmul, with the reason, "
        "against torch.mm. Operands rotate through more than 240 MB; each contender is checked against float64, then "
        "timed as a CUDA graph of some 5 ms, in an order drawn anew each round. 'x mm' is torch.mm's time over the "
        "contender's. Exit status 1 where our kernel failed.",
    )  # fmt: skip
    parser.add_argument("shapes", nargs="+", metavar="SHAPE", help="M N K; or MxNxK, several with commas; 8192: square")
    parser.add_argument("--b-major", choices=("k", "n"), default="k", help="B's contiguous index (%(default)s)")
    parser.add_argument("--rounds", type=rounds, default=11, help="rounds of bursts (%(default)s)")
    parser.add_argument("--sustained", action="store_true", help="also 0.8 s of sustained load, with clock and power")
    parser.add_argument("--peers", action="store_true", help="also the best two of up to twelve proposals of cuBLASLt")


def bench(args: argparse.Namespace) -> int:
    """Measure each shape and print it when it is done; returns the exit status."""
    from ..bench.contenders import cublaslt_version
    from ..bench.matmul import check_size, compare, cuda_device

    problems = [BenchProblem(*sizes, args.b_major) for sizes in shapes_of(args.shapes)]
    for problem in problems:
        check_size(problem)
    device, facts = cuda_device(problems[0])
    if args.peers:
        facts["cublasLt"] = cublaslt_version()
    facts = {name: value for name, value in facts.items() if value is not None}
    done: list[Comparison] = []
    stopped: LayoutError | None = None
    with ProgressLine() as progress:
        if not args.json:
            progress.say(", ".join(f"{name} {value}" for name, value in facts.items()))
        for problem in problems:
            try:
                found = compare(
                    *(device, problem), peers=args.peers, rounds=args.rounds, sustained=args.sustained,
                    progress=progress.show,
                )  # fmt: skip
            except LayoutError as error:  # print what was measured before the failure
                stopped = error
                break
            gc.collect()  # free the graphs and operands before the next shape
            done.append(found)
            if not args.json:
                progress.say(text_of(found))
    if stopped is not None and not done:
        raise stopped
    ok = stopped is None and all(found.ours is not None for found in done)
    if args.json:
        data = record({**facts, "rounds": args.rounds}, [found.outcome for found in done])
        for row, found in zip(data["outcomes"], done):
            seconds = found.ours.seconds if found.ours else None
            row |= {"kernel": found.kernel, "why": found.why, "copies": list(found.copies)}
            row |= {"seconds": seconds, "times_torch_mm": found.ratio}
        print(json.dumps({"ok": ok, "error": None if stopped is None else one_line(stopped), **data}))
        return 0 if ok else 1
    if len(done) > 1:
        print("\n".join(["", HEAD, *(line(found.outcome) for found in done)]))
    if stopped is not None:
        failed(stopped, False)
        return 1  # some products were measured
    return 0 if ok else 1


def text_of(found: Comparison) -> str:
    """One product as text: the kernel and its reason, then every contender, fastest first."""
    lines = ["", f"{found.outcome.problem}: {found.kernel or 'no kernel'}"]
    lines += [f"    because {found.why}"] * bool(found.why) + [f"    copied: {copy}" for copy in found.copies]
    return "\n".join([*lines, DETAILS, *details(found.outcome)])


class ProgressLine:
    """The current step on one line of a terminal, replaced by the next. Prints nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[K{text[:width]}")
            self.stream.flush()
            self.shown = True

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, flush=True)

    def clear(self) -> None:
        """Erase the line."""
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self.shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()
