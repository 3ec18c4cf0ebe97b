"""`layoutgemm emulate FILE`.

The file is a PTX file, with a kernel's described arguments, or a program for an emulated GPU: Python or CUDA C++.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..arguments import PROGRAMS, shown
from ..dtypes import dtype
from ..emulator.api import LaunchResult, TensorMapOf, emulate, emulate_ptx
from ..emulator.distributed import run_ranks
from ..emulator.host.arguments import PackedArray
from ..emulator.host.session import run_script
from ..emulator.host.triton_calls import AUTOTUNE
from ..emulator.machine.launch import Policy
from ..emulator.mutation.api import mutate_ptx
from ..emulator.mutation.run import on_terminal
from ..emulator.mutation.survivors import PROVEN
from ..errors import EmulatorError, LayoutError, PtxError
from .arguments import SCRIPTS, failed, one_line
from .commands import COMMANDS, Commands

ARGUMENTS = """arguments, one --arg for each parameter of the kernel, in order:
  f32:128x64           an array of random values (standard normal, or small integers), passed by its address
  f32:128x64=zeros     of zeros; =nan of NaNs or all ones; =range of 0, 1, 2, ...
  e2m1:128x64          elements narrower than a byte: packed along the last axis, the first in the lowest bits
  x.npy                an array from a file
  i32=5, f32=0.5       a number
  map:bf16:128x64:64x64:128B   a tensor map over a random array: type, shape, box, swizzle; last axis innermost

nvcc compiles CUDA C++; NVCC_APPEND_FLAGS has its flags and further sources

examples:
  layoutgemm emulate kernel.ptx --arg f32:32=range --timeline
  layoutgemm emulate kernel.ptx --arg f32:32=range --svg timeline.svg
  layoutgemm emulate --arch sm_100a script.py --mnk 256,256,64   # a script for a GPU; its arguments come last
  layoutgemm emulate -m script --mnk 256,256,64   # as python -m runs a module; -m pytest tests/test_gemm.py does, too

exit status: 0 nothing was found, 1 something was, 2 the run could not be made, 3 the script failed by itself"""
Argument: TypeAlias = npt.NDArray[np.generic] | PackedArray | TensorMapOf | bytes | int | float
POLICIES = {
    "late": Policy(),
    "early": Policy(loads="early", products="early", stores="early"),
}


def add_emulate(commands: Commands) -> None:
    """The subcommand emulate."""
    add_arguments(commands.add_parser("emulate", help=COMMANDS["emulate"].help))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = ARGUMENTS
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="PTX, or a program with its arguments behind it: Python (.py, .ipynb), CUDA C++ (.cu, or its library .so)",
    )
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", help="a module in place of a script, as for python -m: -m pytest tests"
    )
    parser.add_argument("--arch", default="sm_90a", help="the GPU that a script is told about (%(default)s)")
    parser.add_argument(
        "--ranks", type=_count, default=1, metavar="N", help="run a script as torchrun would, on N GPUs"
    )
    parser.add_argument("--kernel", help="its name, where the file has several")
    parser.add_argument("--grid", type=_sizes, default=(1,), help="blocks, as 4 or 4,2,1 (1)")
    parser.add_argument("--block", type=_sizes, help="threads; default what the kernel requires, else 32")
    parser.add_argument("--cluster", type=_sizes, help="blocks of a cluster; default what the kernel requires, else 1")
    parser.add_argument("--smem", type=int, default=0, help="bytes of dynamic shared memory (%(default)s)")
    parser.add_argument("--arg", action="append", default=[], metavar="ARG", help="see below; repeatable")
    parser.add_argument(
        "--save", action="append", type=_saved, default=[], metavar="N=FILE.npy",
        help="then write argument N (from 0) to a file",
    )  # fmt: skip
    parser.add_argument(
        "--order", "--policy", type=_policy, default="late",
        help="late, early, or a number: a random order with this seed",
    )  # fmt: skip
    parser.add_argument(
        "--lanes", choices=("strict", "converged", "off"), default="converged",
        help="races between the lanes of one warp: by PTX's definition, by practice (%(default)s), or not checked",
    )  # fmt: skip
    parser.add_argument(
        "--autotune", choices=AUTOTUNE, default="first",
        help="configurations of Triton's autotuners that run: the first that compiles and fits (%(default)s), or all",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, help="of random arrays (%(default)s)")
    parser.add_argument(
        "--banks",
        action="store_true",
        help="count bank conflicts of shared memory and sectors of global memory by instruction",
    )
    parser.add_argument(
        "--timeline", nargs="?", const="", metavar="FILE",
        help="draw one row of activity for each warp and engine: as text, or as SVG to a file",
    )  # fmt: skip
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the first launch's first block there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--mutants", nargs="?", type=_count, const=0, metavar="N",
        help="run at most N mutants of the kernel and list the survivors; status 1 if one is "
        "left without a proof that it changes nothing",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    args.svg = args.svg or (Path(args.timeline) if args.timeline else None)
    try:
        if args.module is not None or (args.file is not None and args.file.suffix in SCRIPTS):
            return _script(args)
        if args.file is None:
            raise EmulatorError("emulate runs a PTX file, a script, or -m MODULE: none is given")
        rng = np.random.default_rng(args.seed)
        values = [_argument(text, rng) for text in args.arg]
        for name, usual in _OF_SCRIPTS.items():
            if getattr(args, name) != usual:
                raise EmulatorError(f"--{name} is of a script, and {args.file} is PTX, which names its target")
        beyond = [number for number, _ in args.save if number >= len(values)]
        if beyond:
            raise EmulatorError(f"--save {beyond[0]}: the call has {len(values)} argument(s), numbered from 0")
        if numbers := [number for number, _ in args.save if isinstance(values[number], (int, float))]:
            raise EmulatorError(f"--save {numbers[0]}: argument {numbers[0]}, {args.arg[numbers[0]]}, is no array")
        if args.mutants is not None:
            return _mutants(args, values)
        done = emulate_ptx(
            args.file, grid=args.grid, block=args.block, cluster=args.cluster, smem=args.smem, args=values,
            kernel=args.kernel, policy=replace(args.order, lanes=args.lanes), banks=args.banks, timeline=_timed(args),
        )  # fmt: skip
    except (LayoutError, OSError, ValueError) as error:
        return failed(error, args.json)
    for number, path in args.save:
        value = values[number]
        value = cast(Any, value.array) if isinstance(value, TensorMapOf) else value
        np.save(path, value.values if isinstance(value, PackedArray) else value)
    _drawn(args, done.launches)
    print(json.dumps(done.as_json()) if args.json else done.report())
    return 0 if done.ok else 1


def _policy(text: str) -> Policy:
    """The order of events that --order names."""
    if text not in POLICIES and not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{shown(text)}: write late, early, or a number from 0, the seed of a random order"
        )
    return POLICIES.get(text) or Policy(pick="random", seed=int(text))


def _seed(text: str) -> int:
    """The seed of a generator."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)}: write a number from 0")
    return int(text)


def _count(text: str) -> int:
    """A number of ranks or mutants."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)}: write a number from 1")
    return int(text)


def _saved(text: str) -> tuple[int, str]:
    """`0=FILE.npy` as the argument's number and the file."""
    number, _, path = text.partition("=")
    if not number.isdecimal() or not path:
        raise argparse.ArgumentTypeError(f"{shown(text)}: write N=FILE.npy, as 0=out.npy for the first argument")
    return int(number), path


def _timed(args: argparse.Namespace) -> bool:
    return args.timeline is not None or args.svg is not None


def _drawn(args: argparse.Namespace, launches: Sequence[LaunchResult]) -> None:
    """Draw the timelines that were asked for: the first launch's to a file, or all as text."""
    found = [launch.timeline for launch in launches if launch.timeline is not None]
    if args.svg is not None and found:
        found[0].svg(args.svg, title=f"timeline of {args.kernel or args.file.name}")
        if not args.json:
            print(f"written to {args.svg}")
    elif args.svg is not None and not args.json:
        print(f"nothing is drawn to {args.svg}: there was no launch")
    if args.timeline == "" and not args.json:
        print("\n".join(timeline.text() for timeline in found))


_OF_PTX: dict[str, Any] = {
    "kernel": None, "grid": (1,), "block": None, "cluster": None, "smem": 0, "arg": [], "save": [], "mutants": None,
}  # fmt: skip


_OF_SCRIPTS: dict[str, object] = {"arch": "sm_90a", "ranks": 1, "autotune": "first"}


def _script(args: argparse.Namespace) -> int:
    """Run a Python script on an emulated GPU; print its findings last."""
    script = args.file if args.module is None else args.module
    for name, usual in _OF_PTX.items():
        if getattr(args, name) != usual:
            raise EmulatorError(f"--{name} describes a launch of PTX, and {script} makes its own")
    if args.ranks > 1 and args.module is None and args.file.suffix in PROGRAMS:
        raise EmulatorError(
            f"--ranks {args.ranks} runs a script of Python as torchrun does, and {args.file} is a program"
        )
    options = {
        "policy": replace(args.order, lanes=args.lanes), "banks": args.banks, "timeline": _timed(args),
        "progress": sys.stderr.isatty(), "autotune": args.autotune,
    }  # fmt: skip
    if args.ranks > 1:
        done = run_ranks(script, args.script, args.arch, args.ranks, **options)
    else:
        done = run_script(emulate, script, args.script, args.arch, **options)
    gpu = done.gpu
    _drawn(args, [launch for run in gpu.runs for launch in run.launches])
    if args.json:
        print(json.dumps({**gpu.as_json(), "status": done.status}))
    else:
        banks = [str(launch) for run in gpu.runs for launch in run.launches if args.banks]
        print("\n".join([*banks, gpu.report()]))
    if isinstance(done.error, EmulatorError):  # the kernel's, unless its PTX is not known
        return 2 if isinstance(done.error, PtxError) else 1
    return 3 if done.status else int(not gpu.ok)


def _mutants(args: argparse.Namespace, values: list[Argument]) -> int:
    """Run mutants of the kernel and print the table."""
    done = mutate_ptx(
        args.file, grid=args.grid, block=args.block, cluster=args.cluster, smem=args.smem, args=values,
        kernel=args.kernel, count=args.mutants or None, progress=on_terminal if sys.stderr.isatty() else None,
    )  # fmt: skip
    left = [row for row in done.rows if not row.caught]
    if args.json:
        rows = [{"mutant": str(row.mutant), "reason": row.reason} for row in left]
        print(json.dumps({"mutants": len(done.rows), "survivors": rows}))
    else:
        print(done.table())
    return int(any(row.reason.partition(":")[0] not in PROVEN for row in left))


def _argument(text: str, rng: np.random.Generator) -> Argument:
    """The value of one --arg. Every error names it."""
    try:
        return argument(text, rng)
    except (LayoutError, OSError, ValueError) as error:
        raise EmulatorError(f"--arg {text}: {one_line(error)}") from error


def argument(text: str, rng: np.random.Generator) -> Argument:
    """The value that an --arg option describes. Raises EmulatorError.

    >>> rng = np.random.default_rng(0)
    >>> argument("i32=-5", rng), argument("f32:2x3=range", rng).tolist()
    (-5, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    """
    if text.endswith(".npy"):
        return np.load(text)
    if text.startswith("map:"):
        parts = text.split(":")
        if len(parts) not in (4, 5):
            raise EmulatorError(f"{shown(text)}: map:TYPE:SHAPE:BOX[:SWIZZLE]")
        values = _array(parts[1], _shape(parts[2]), "random", rng)
        return TensorMapOf(values, _shape(parts[3]), parts[4] if len(parts) == 5 else "none", parts[1])
    found = re.fullmatch(r"(\w+)(?::([\dx]+))?(?:=(.*))?", text)
    if found is None or (found[2] is None and found[3] is None):
        raise EmulatorError(f"{shown(text)} is not an argument: TYPE:SHAPE[=CONTENT], TYPE=NUMBER, FILE.npy or map:...")
    kind, shape, content = found.groups()
    if shape is not None:
        return _array(kind, _shape(shape), content or "random", rng)
    if dtype(kind).kind == "float":
        if kind in ("f32", "f64", "f16"):
            return float(content)
        return int(dtype(kind).encode([float(content)])[0])
    return int(content, 0)


def _array(
    kind: str, shape: tuple[int, ...], content: str, rng: np.random.Generator
) -> npt.NDArray[np.generic] | PackedArray:
    form = dtype(kind)
    if content not in ("random", "zeros", "nan", "range"):
        raise EmulatorError(f"an array of {shown(content)}: random, zeros, nan or range")
    if form.bits < 8:
        whole = rng.integers(0, 1 << form.bits, shape) if content == "random" else np.zeros(shape, np.int64)
        if content == "range":
            whole = np.arange(whole.size).reshape(shape) % (1 << form.bits)
        return PackedArray.of(whole + (content == "nan") * ((1 << form.bits) - 1), kind)
    if content == "nan":
        return (
            np.frombuffer(np.full(int(np.prod(shape)) * form.bytes, 0xFF, np.uint8), _native(kind))
            .reshape(shape)
            .copy()
        )
    values: Any = np.zeros(shape)
    if content == "range":
        values = np.arange(int(np.prod(shape))).reshape(shape)
    elif content == "random":
        values = rng.standard_normal(shape) if form.kind == "float" else rng.integers(0, 8, shape)
    native = _native(kind)
    if form.kind == "float" and np.dtype(native).kind != "f":
        return np.ascontiguousarray(form.encode(values.astype(np.float32)))
    return values.astype(native)


def _native(kind: str) -> Any:
    """NumPy's type of an element; for floats that NumPy lacks, the unsigned integer of their width."""
    known = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    form = dtype(kind)
    if kind in known:
        return known[kind]
    return np.dtype(f"{'i' if form.kind == 'int' else 'u'}{form.bytes}")


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise EmulatorError(f"{shown(text)} is no shape: extents joined by x, as 128x64")
    return tuple([int(part) for part in text.split("x")])


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple([int(part) for part in text.split(",")])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a size: write 4 or 4,2,1, x first") from None
