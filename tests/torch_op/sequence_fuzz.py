"""Sequences of calls whose state changes between them, each beside float64 formulas of torch alone.

The door's draws give a structure. The calls of a sequence share it, and differ in memory, values, numbers and objects:
what kept launches and caches are found by.

python -m tests.torch_op.sequence_fuzz --door dense --seed 0 --count 20 [--gpu]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from layoutgemm.errors import LayoutError
from layoutgemm.torch_op import prepared
from tests.torch_op.call_ways import WAYS, NoWayError
from tests.torch_op.door_fuzz import (
    CODES,
    DOORS,
    SIZES_K,
    SIZES_M,
    SIZES_N,
    Draw,
    Problem,
    again,
    alike,
    beside,
    wide,
)
from tests.torch_op.door_launches import every_door

BY_NAME = ("OperandError", "TensorError", "PlanError")  # torch's errors around ours
LENGTH = 9  # calls of a sequence
ACTIONS = ("again", "again", "values", "values", "memory", "memory", "objects", "back", "other", "recycled")


SIZES = (SIZES_M, SIZES_M[1:], SIZES_N, SIZES_N[1:], SIZES_K, SIZES_K[1:])


class Parted(Draw):
    """Draws of a structure whose memory and values have seeds of their own.

    most  of a product's sizes
    """

    most = 72  # the emulator takes seconds for larger ones

    def __init__(self, structure: str, memory: int, values: int) -> None:
        super().__init__(structure)
        self.memory, self.values = Draw(f"memory{memory}"), Draw(f"values{values}")
        torch.manual_seed(values)

    def choice(self, of: Any) -> Any:
        found = super().choice(of)
        if type(of[0]) is not int or of not in SIZES:
            return found
        if of in SIZES[:2] and self.memory.chance(0.15):
            found = self.memory.choice(of)
        return min(found, self.most)

    def number(self) -> float:
        super().number()
        return self.values.choice((2.0, -1.0, 0.5, 3, 1, 1.0, 0.0, -0.0))

    def in_order(self, sizes: list[int]) -> Any:
        self.values.shuffle(sizes)
        return torch.tensor(sizes)


class Kept:
    """A problem whose calls have the same tensors each time."""

    def __init__(self, door: str, structure: str, memory: int, values: int) -> None:
        self.made = door, structure, memory
        self.problem: Problem = DOORS[door](Parted(structure, memory, values))
        self.given = {name: again(x) for name, x in self.problem.given.items()}
        self.out = again(self.problem.out)
        self.graph: Any = None
        self.compiled: Any = None
        self.works = False

    def changed(self, values: int) -> bool:
        """Change the values of all tensors in place, and all numbers."""
        door, structure, memory = self.made
        other = DOORS[door](Parted(structure, memory, values))
        mine, others = tensors_of(self.problem.call, set()), tensors_of(other.call, set())
        if [lie_of(x) for x in mine] != [lie_of(x) for x in others]:
            return False
        for x, y in zip(mine, others):
            x.untyped_storage().copy_(y.untyped_storage())
        for name, x in other.given.items():
            if isinstance(x, torch.Tensor):
                self.given[name].copy_(x)
            else:
                self.given[name], self.graph = x, None  # a graph holds numbers
        # The call keeps its own options; what it computes is the other problem's.
        self.problem.want, self.problem.given, self.problem.kinds = other.want, other.given, other.kinds
        self.problem.loose, self.problem.said = other.loose, other.said
        return True


def lie_of(x: Any) -> Any:
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.is_neg(), x.untyped_storage().nbytes()


def tensors_of(x: Any, seen: set[int]) -> list[Any]:
    """The tensors that a call holds, in the order of its closure."""
    if id(x) in seen or x is None:
        return []
    seen.add(id(x))
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, types.FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if cell_is_full(cell)]
        return [y for cell in cells for y in tensors_of(cell, seen)]
    if isinstance(x, dict):
        return [y for each in x.values() for y in tensors_of(each, seen)]
    if isinstance(x, list | tuple):
        return [y for each in x for y in tensors_of(each, seen)]
    if type(x).__name__ in ("QuantizedWeight", "QuantizedExperts"):
        return [y for each in vars(x).values() for y in tensors_of(each, seen)]
    return []


def cell_is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def other_stream() -> Iterator[None]:
    now, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(now)
    with torch.cuda.stream(stream):
        yield
    now.wait_stream(stream)


REGIONS: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "default double": default_double,
    "default meta": lambda: torch.device("meta"),
    "autocast off": lambda: torch.autocast("cuda", enabled=False),
    "other stream": other_stream,
}


def in_thread(call: Callable[[], Any]) -> Any:
    """The call's result, of a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = found[0]
    if error is not None:
        raise error
    return value


class Restored:
    """The written tensors of a call as they were before it."""

    def __init__(self, kept: Kept) -> None:
        for name, x in kept.given.items():
            if isinstance(x, torch.Tensor) and not x.is_neg():
                x.copy_(kept.problem.given[name])
        if kept.out is not None:
            kept.out.copy_(kept.problem.out)
        self.tensors = {name: x for name, x in {"out": kept.out, **kept.given}.items() if isinstance(x, torch.Tensor)}
        self.beside = {name: beside(x) for name, x in self.tensors.items()}
        self.was = {name: wide(x).clone() for name, x in self.tensors.items()}

    def written(self) -> list[str]:
        return [
            f"refused, and {n} was written" for n, x in self.tensors.items() if not torch.equal(wide(x), self.was[n])
        ]

    def wrong(self, kept: Kept, got: Any, given: dict[str, Any]) -> list[str]:
        """Results that differ from float64's, and bytes that no result has."""
        problem, found = kept.problem, []
        for name, want in problem.want.items():
            x = got if name == "C" else given.get(name)
            if x is None:  # a way that gave the call a copy of `given`
                continue
            if why := alike(x, want, problem.kinds.get(name, x.dtype), problem.loose):
                found.append(f"{name}: {why}")
        for name, x in self.tensors.items():
            if not torch.equal(beside(x), self.beside[name]):
                found.append(f"bytes beside {name} {tuple(x.shape)} {x.stride()} were written")
        return found


def checked(kept: Kept, region: str, threaded: bool, tally: Any, memory: Any, way: str = "") -> list[str]:
    """Call once, in one of `WAYS`, or plainly; the faults."""
    with memory:
        before = Restored(kept)
    given = dict(kept.given)

    def call() -> Any:
        with REGIONS[region]():
            return WAYS[way](kept, given) if way else kept.problem.call(kept.out, given)

    try:
        got = in_thread(call) if threaded else call()
    except NoWayError:
        tally["no way"] += 1
        return []
    except Exception as error:
        if not (isinstance(error, LayoutError) or (way and any(name in str(error) for name in BY_NAME))):
            last = traceback.extract_tb(error.__traceback__)[-1]
            if "CUDA" in str(error):
                raise
            return [f"{type(error).__name__} at {last.filename}:{last.lineno}: {str(error)[:700]}"]
        tally["refused"] += 1
        tally["refused: " + str(error)[:100]] += 1
        return before.written()
    tally["answered"] += 1
    kept.works = True
    with memory:
        found = before.wrong(kept, got, given)
    return found if kept.out is None or got is kept.out else [*found, "the result is not out"]


def replayed(kept: Kept, tally: Any, memory: Any) -> list[str]:
    """Capture the call in a graph, or replay that of an earlier capture; the faults."""
    given = dict(kept.given)
    if kept.graph is None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                got = kept.problem.call(kept.out, given)
        except LayoutError as error:  # a call that cannot be captured
            tally["capture refused: " + str(error)[:100]] += 1
            kept.works = False
            return []
        kept.graph = graph, got, given
    graph, got, given = kept.graph
    with memory:
        before = Restored(kept)
        graph.replay()
        tally["replayed"] += 1
        return [f"replayed: {x}" for x in before.wrong(kept, got, given)]


def sequence(door: str, number: int, tally: Any, on: str, ways: Sequence[str] = ()) -> Iterator[str]:
    """The faults of one sequence.

    ways  in which calls are made beside plain ones, drawn for each
    """
    draw = Draw(f"sequence {door}{number}")
    code = "sm_90a" if on == "gpu" else draw.choice(CODES[door])
    memory = torch.device("cuda" if on == "gpu" else "cpu")
    structures = [f"{door}{number}", f"{door}{number} other"]
    kept: list[Kept] = []
    path: list[str] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        made = stack.enter_context(every_door(patch, code)) if on == "kernel" else []
        for step in range(LENGTH):
            action = draw.choice(ACTIONS) if kept else "memory"
            region = draw.choice((*["plain"] * 8, *REGIONS))
            region = "plain" if region == "other stream" and on != "gpu" else region
            threaded, seed = draw.chance(0.1), draw.randrange(1 << 30)
            places = len(made)
            try:
                with memory:
                    if action == "values" and not kept[-1].changed(seed):
                        action = "again"
                    elif action == "back":
                        kept.append(kept.pop(draw.randrange(len(kept))))
                    elif action in ("memory", "other"):
                        kept.append(Kept(door, structures[action == "other"], seed, seed))
                    elif action in ("objects", "recycled"):
                        _, structure, lies = kept[-1].made
                        if action == "recycled":  # what was freed is allocated again
                            kept.pop()
                            gc.collect()
                        kept.append(Kept(door, structure, lies, seed))
                    if draw.chance(0.03):
                        prepared.forget()
            except LayoutError as error:
                tally["refused where it was made"] += 1
                tally["made: " + str(error)[:70]] += 1
                if not kept:
                    return
                continue
            way = draw.choice(ways) if ways and draw.chance(0.6) else ""
            if way:
                region, threaded = "plain", False
            path.append(f"{action}, {region}{' in a thread' * threaded} {way}")
            tally[f"way {way}"] += 1
            tally["calls"] += 1
            tally[f"by {action}"] += 1
            found = checked(kept[-1], region, threaded, tally, memory, way)
            if on == "gpu" and kept[-1].works and (kept[-1].graph is not None or draw.chance(0.3)):
                found += replayed(kept[-1], tally, memory)
            for fault in found:
                yield f"{door} {number} {on} {code} call {step}: {fault}\n    {path}\n    {kept[-1].problem.said}"
            tally["launches"] += len(made) - places
            if on == "gpu":
                torch.cuda.synchronize()


def faults(
    door: str,
    seed: int,
    count: int,
    tally: Any = None,
    seconds: float = 1e9,
    on: str = "kernel",
    ways: Sequence[str] = (),
) -> Iterator[str]:
    """The faults of so many sequences."""
    tally = collections.Counter() if tally is None else tally
    start = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - start > seconds:
            return
        tally["sequences"] += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from sequence(door, number, tally, on, ways)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", default="dense")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--ways", default="", help="of call_ways, with commas; all: every one")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    asked = parser.parse_args()
    tally: Any = collections.Counter()
    on = "gpu" if asked.gpu else "cpu" if asked.cpu else "kernel"
    ways = tuple(WAYS) if asked.ways == "all" else tuple(filter(None, asked.ways.split(",")))
    Parted.most = 1 << 20 if asked.gpu else Parted.most
    try:
        for fault in faults(asked.door, asked.seed, asked.count, tally, asked.seconds, on, ways):
            print("FAULT", fault, flush=True)
    finally:
        for name, count in tally.most_common():
            print(count, name)


if __name__ == "__main__":
    main()
