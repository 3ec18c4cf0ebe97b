"""Problems of torch tensors, launched. A kernel is compiled once, and a call writes four words.

    Problem --solve--> Solution --PreparedProblem--> kernel loaded on the GPU, argument blocks, copies if any

`PreparedProblem.launch` is the fast path: pointers and stream into a block of its own, then the compiled host function.
Several threads and streams may launch one PreparedProblem at once: a block belongs to one call at a time. Nothing is
allocated there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import Array, c_int64
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..atoms.copy.base import VECTOR_BYTES
from ..dtypes import dtype
from ..errors import PlanError
from ..kernels.compile.compiler import CompiledGemm
from ..kernels.compile.launcher import (
    THREAD,
    ArgumentBlock,
    ChainLauncher,
    HostFunction,
    Launcher,
    address_of,
    bind,
    error_name,
)
from ..kernels.compile.worker import Kernel, compile_apart
from ..kernels.compile.worker import plan_of as plan_of_kernel
from ..kernels.plan import rounded_up
from ..moved import old_names
from .compiled.c_calls import LaunchPlan
from .compiled.guards import ALIGNED, LEAST_ADDRESS, Guard
from .problem import (
    OperandCopy,
    Problem,
    Solution,
    StridedOperand,
    arguments,
    contiguous_strides,
    elements_between,
    workers,
)
from .solver import solve

__getattr__ = old_names(__name__)

_NO_COPIES = (None, None, None)
MAX_KERNELS = 1024
_WORDS = 14  # where an epilogue's words begin, after the product's own arguments

raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
deterministic: Callable[[], bool] = torch.are_deterministic_algorithms_enabled
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def _empty_strided(shape: Sequence[int], strides: Sequence[int], kind: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=kind, device="cuda")


# What torch's own generated code allocates with: half the time of torch.empty, and all the dispatcher adds is skipped.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
empty_on_gpu = getattr(_guards, "_empty_strided_cuda", _empty_strided)
# Bytes for a stream of the current device, and their release, in less time than a tensor. None in a torch without CUDA.
take_memory: Callable[[int, int], int] | None = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
leave_memory: Callable[[int], None] | None = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
APART = 256  # bytes: a tensor in the memory begins at a multiple, as one in memory of its own does


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """A launch that was made. Its kernel, the arguments and their names, the GPU's index, and what errors name."""

    compiled: CompiledGemm
    arguments: tuple[int, ...]
    device: int
    what: object

    @property
    def names(self) -> tuple[str, ...]:
        """The kernel's parameters."""
        return tuple(self.compiled.plan.parameters)


ProductCall = Callable[..., Any]  # of A, B and more tensors: a new result, or None
Runs = tuple[tuple[int, np.generic], ...]  # (words, value), as `ReducingPlan.first_partials` has them


@dataclass(slots=True, eq=False)
class Recording:
    """The launches of one call, and the memory that they take.

    memory   workspaces that were allocated for them: address -> bytes
    first    what a workspace holds before the launch: address -> runs of equal words, as `fill` takes them
    lists    tensors of the plan's own, the same for each launch of it
    targets  what they write as C, with the count of its writes then. Held, so that nothing else gets its address
    clears   whether the last of these was cleared first
    """

    launches: list[RecordedLaunch] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    first: dict[int, Runs] = field(default_factory=dict)
    lists: dict[int, torch.Tensor] = field(default_factory=dict)
    targets: list[tuple[torch.Tensor, int | None]] = field(default_factory=list)
    clears: bool = False

    def knows(self, argument: int) -> bool:
        """True for a number, and for an address of its memory or lists. Addresses are larger than 2**32."""
        return argument < LEAST_ADDRESS or argument in self.memory or argument in self.lists


class _Recorded(threading.local):
    """This thread's recordings, the outermost first."""

    now: tuple[Recording, ...] = ()


_RECORDED = _Recorded()
_OPEN: list[Recording] = []  # of all threads: a launch looks at its own thread's where there are any


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record the launches that this thread makes inside."""
    record, before = Recording(), _RECORDED.now
    _RECORDED.now = (*before, record)
    _OPEN.append(record)
    try:
        yield record
    finally:
        _OPEN.remove(record)
        _RECORDED.now = before


def note_target(c: torch.Tensor, cleared: bool = False) -> None:
    """Say which tensor the next launch writes as C, and whether it was cleared first."""
    for record in _RECORDED.now:
        record.clears = cleared
        record.targets.append((c, None if c.is_inference() else c._version))


def note_list(tiles: torch.Tensor) -> None:
    """Say that the next launch reads a list of its plan's own. A kept call holds it."""
    for record in _RECORDED.now:
        record.lists[tiles.data_ptr()] = tiles


def workspace_on(device: torch.device, size: int) -> torch.Tensor:
    """A launch's workspace of `size` bytes."""
    made = torch.empty(size, dtype=torch.uint8, device=device)
    note_workspace(made)
    return made


def note_workspace(memory: torch.Tensor | None, first: Runs = ()) -> None:
    """Say that memory is a launch's own. A kept call allocates it anew, and fills it with `first`."""
    if memory is not None and memory.numel():
        for record in _RECORDED.now:
            record.memory[memory.data_ptr()] = memory.nbytes
            record.first[memory.data_ptr()] = first


def fill(memory: torch.Tensor, first: Runs | Literal["zeros"]) -> None:
    """Fill a workspace with runs of equal words, or a result with zeros.

    >>> memory = torch.zeros(16, dtype=torch.uint8)
    >>> fill(memory, ((1, np.float32(2)), (2, np.int32(7))))
    >>> memory[:4].view(torch.float32).tolist(), memory[4:].view(torch.int32).tolist()
    ([2.0], [7, 7, 0])
    """
    if first == ZEROS:
        memory.zero_()
        return
    at = 0
    for count, value in first:
        kind = torch.float32 if value.dtype.kind == "f" else torch.int32
        memory[4 * at : 4 * (at + count)].view(kind).fill_(value.item())
        at += count


class _Loaded:
    """A kernel on one GPU, with blocks of its arguments. One block is for each call at a time."""

    __slots__ = ("_compiled", "_free", "_launcher", "_template", "device", "what")

    def __init__(self, compiled: CompiledGemm, arguments: Sequence[int], device: int, what: object):
        self._compiled = compiled
        compiled.launcher.load(device)
        self._launcher: Launcher | ChainLauncher = compiled.launcher
        self._template = tuple(arguments)
        self.what, self.device = what, device  # `what` is named in errors
        self._free: list[ArgumentBlock] = []

    def _block(self) -> ArgumentBlock:
        """A block that no other call has: of a new thread, or where as many calls were at once as there are blocks."""
        try:
            THREAD.bound  # noqa: B018  # absent in a thread that has no context yet
        except AttributeError:
            bind(self.device)
        try:
            return self._free.pop()
        except IndexError:
            return self._launcher.block(self._template)

    def _starter(self, places: Sequence[int]) -> Callable[[Sequence[int], int], None]:
        """The launch with values at these places, on a stream. It raises PlanError when CUDA refuses.

        What is the same each time is the function's own: to look up an attribute takes as long as to write an address.
        """
        entry, free, stream_place = self._launcher.entry, self._free, len(self._template)
        status = stream_place + 1

        def start(given: Sequence[int], stream: int) -> None:
            try:
                THREAD.bound  # noqa: B018  # as in `_block`, without a call of it
                block = free.pop()
            except (AttributeError, IndexError):
                block = self._block()
            values = block.values
            for place, value in zip(places, given):
                values[place] = value
            values[stream_place] = stream
            if _OPEN:
                self._note(values)
            entry(block.pointer)
            if values[status]:
                self._refused(block)
            free.append(block)

        return start

    def _refused(self, block: ArgumentBlock) -> None:
        """Raise PlanError for the CUDA error of a launch, whose block is free again."""
        self._free.append(block)
        self.refused(block.values[len(self._template) + 1])

    def refused(self, error: int) -> None:
        """Raise PlanError for a CUDA error. Of a chain, the upper half is the number of the launch."""
        raise PlanError(f"CUDA refused the launch: {error_name(error & 0xFFFFFFFF)}; {self._named(error >> 32)}")

    def _named(self, number: int) -> object:
        """The kernel that an error names, of a chain's launch by its number."""
        return self.what

    def entries(self) -> Sequence[tuple[HostFunction, Sequence[int]]]:
        """The host function of each launch, and the places of its arguments."""
        return [(self._launcher.entry, range(len(self._template)))]

    def _note(self, values: Array[c_int64] | Sequence[int]) -> None:
        """Add a launch to this thread's recordings."""
        arguments = tuple(values[: len(self._template)])
        for record in _RECORDED.now:
            record.launches.append(RecordedLaunch(self._compiled, arguments, self.device, self.what))

    @property
    def names_of_call(self) -> dict[str, object]:
        """Functions of this launch that the code of `making_code` calls, by name."""
        return {
            "entry": self._launcher.entry, "free": self._free, "another": self._block, "note": self._note,
            "refused": self._refused,
        }  # fmt: skip

    @property
    def arguments(self) -> int:
        """The number of a launch's arguments."""
        return len(self._template)

    @property
    def template(self) -> tuple[int, ...]:
        """A launch's arguments, of which a call writes some."""
        return self._template


# A graph that saved a tensor has to see that it has changed: in C alone, half the time of increment_version.
try:
    (mark_written := torch._C._increment_version)((torch.empty(0),))
except (AttributeError, TypeError):

    def mark_written(tensors: Sequence[torch.Tensor]) -> None:
        """Count one more version of each tensor."""
        for x in tensors:
            torch.autograd.graph.increment_version(x)


class NewTensor(NamedTuple):
    """A tensor that a call allocates, and the argument that is its address. None where the launch has none.

    first  what it holds before the launch: runs of equal words, as `fill` takes them, or ZEROS; () for anything
    """

    shape: Sequence[int]
    strides: Sequence[int]
    kind: torch.dtype
    place: int | None
    first: Runs | Literal["zeros"] = ()


ZEROS: Literal["zeros"] = "zeros"


class NewResult(NamedTuple):
    """A launch that writes new tensors, or given ones.

    reads  tensor of the call -> the argument that is its address.
    words  the arguments that are the call's numbers, which come behind its tensors, as a launch has them.
    inner  argument that is an address in the memory that a call's launches share -> its bytes from the beginning.
    """

    loaded: _Loaded
    makes: tuple[NewTensor, ...]
    reads: Mapping[int, int]
    words: tuple[int, ...] = ()
    inner: Mapping[int, int] = MappingProxyType({})


class Given(NamedTuple):
    """A call's own tensors that its launches write, and when it launches.

    written  places of the tensors, which may share no memory with another one
    spans    bytes from first to last element of each tensor of the call; () where none is written
    into     the place of the tensor that is returned in place of new ones, or None
    ordered  whether the launches give the same bits each time: in torch's deterministic mode no others are made
    aligned  whether the call asks for addresses that are multiples of 16, and of no freed storage
    begins   bytes from each tensor of the call to what the launches take of it; () for none
    """

    written: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    into: int | None = None
    ordered: bool = True
    aligned: bool = True
    begins: tuple[int, ...] = ()

    def pairs(self, read: Sequence[int]) -> list[tuple[int, int]]:
        """A tensor that is written and another one, for all that may share no memory."""
        return [(i, j) for i in self.written for j in read if j != i and not (j in self.written and j < i)]


NONE_WRITTEN = Given()


def making(
    launches: Sequence[NewResult], count: int, returns: Sequence[int | None] | None = None,
    given: Given = NONE_WRITTEN, memory: int = 0,
) -> ProductCall:  # fmt: skip
    """The call that allocates new tensors and makes the launches that write them.

    All are of one GPU, and on its stream.

    It returns None where the GPU is not the current one, for addresses that are no multiples of 16, and for a tensor
    whose storage was freed. And where a tensor that is written shares memory with another one.

    count    of the call's tensors; a third one may be None where there are two
    returns  numbers of the new tensors, with None for none: the call returns them together. None for the first one
    given    the call's tensors that are written
    memory   bytes that the launches share, and that are dropped behind them
    """
    launches, memory, returns = _with_dropped(launches, memory, numbers_of_new(returns, given))
    alone = len(launches) == 1 and not launches[0].inner
    loaded, makes, reads, words, inner = launches[0] if alone else _as_one(launches)
    of_new = [(x.place is not None, bool(x.first)) for x in makes]
    code = making_code(
        of_new,
        tuple(reads),
        len(words),
        bool(inner),
        count,
        returns,
        given._replace(spans=(), begins=(0,) * len(given.begins)),
    )
    parts: dict[str, object] = {"index": loaded.device, "memory": (memory,), "byte": torch.uint8}
    parts |= loaded.names_of_call | {"stream": loaded.arguments, "status": loaded.arguments + 1}
    parts |= {f"span{i}": size for i, size in enumerate(given.spans)}
    parts |= {f"begin{i}": size for i, size in enumerate(given.begins)}
    parts |= {f"read{tensor}": place for tensor, place in reads.items()}
    parts |= {f"word{number}": place for number, place in enumerate(words)}
    parts["within"] = loaded.arguments - 1  # where a chain has the memory's address
    for i, each in enumerate(makes):
        parts |= {f"shape{i}": each.shape, f"strides{i}": each.strides, f"kind{i}": each.kind}
        parts |= {} if each.place is None else {f"made{i}": each.place}
        parts |= {f"first{i}": each.first} if each.first else {}
    found: ProductCall = _made(code, tuple(parts))(*parts.values())
    entries = [(at, places) for entry, places in loaded.entries() if (at := address_of(entry)) is not None]
    if len(entries) < len(loaded.entries()):  # one is a function of Python
        return found
    tensors, begins = sorted(reads), given.begins or (0,) * count
    plan = LaunchPlan(
        functions=(
            "data_ptr", current_device, loaded.device, raw_stream, None if given.ordered else deterministic,
            empty_on_gpu, fill, mark_written, bind, _OPEN, found, loaded.refused, None,
            (memory,), (1,), torch.uint8, memory, take_memory, leave_memory,
        ),
        numbers=(
            LEAST_ADDRESS, ALIGNED * given.aligned, loaded.arguments, count, count + len(words),
            count == 2 and not words, -1 if given.into is None else given.into,
        ),
        template=loaded.template, reads=[(tensor, reads[tensor], begins[tensor]) for tensor in tensors],
        spans=given.spans, written=given.written, pairs=given.pairs(tensors), inner=[*inner.items()],
        news=[(x.shape, x.strides, x.kind, x.place, x.first) for x in makes], words=words,
        returns=returns, launches=entries,
    )  # fmt: skip
    return plan.call() or found


def _with_dropped(
    launches: Sequence[NewResult], memory: int, returns: Sequence[int | None]
) -> tuple[Sequence[NewResult], int, Sequence[int | None]]:
    """The launches, whose dropped tensors lie in the memory that they share.

    A tensor that holds something before stays one. Returns the bytes of that memory, and the numbers of new tensors
    that the call returns, too.
    """
    kept: list[int] = []
    found: list[NewResult] = []
    number = 0
    for one in launches:
        makes, inner = [], dict(one.inner)
        for x in one.makes:
            if number in returns or x.first or x.place is None:
                kept.append(number)
                makes.append(x)
            else:
                begin = rounded_up(memory, APART)
                inner[x.place], memory = begin, begin + elements_between(x.shape, x.strides) * x.kind.itemsize
            number += 1
        found.append(one._replace(makes=tuple(makes), inner=inner))
    return found, memory, [None if i is None else kept.index(i) for i in returns]


def numbers_of_new(returns: Sequence[int | None] | None, given: Given) -> Sequence[int | None]:
    """Numbers of the new tensors that a call returns, with None for none: see `making`."""
    return returns if returns is not None else [] if given.into is not None else [0]


class _LoadedChain(_Loaded):
    """The kernels of a chain on one GPU, whose launches are one call.

    launches   the kernels
    places     of each its arguments among the chain's
    arguments  of the chain
    within     arguments that lie so many bytes behind the last one, by their places
    """

    __slots__ = ("_chain", "_places", "_within")

    def __init__(
        self, launches: Sequence[_Loaded], places: Sequence[Sequence[int]], arguments: Sequence[int],
        within: Mapping[int, int],
    ):  # fmt: skip
        self._chain, self._places, self._within = launches, places, within
        self._launcher = ChainLauncher([each._launcher.entry for each in launches], places, [*within.items()])
        self._template, self._free, self.device = tuple(arguments), [], launches[0].device

    def _named(self, number: int) -> object:
        return self._chain[number].what

    def entries(self) -> Sequence[tuple[HostFunction, Sequence[int]]]:
        return [(one._launcher.entry, places) for one, places in zip(self._chain, self._places)]

    def _note(self, values: Array[c_int64] | Sequence[int]) -> None:
        memory = values[len(self._template) - 1]
        moved = {place: memory + begin for place, begin in self._within.items()}
        for one, places in zip(self._chain, self._places):
            one._note([moved.get(place, values[place]) for place in places])


def _as_one(launches: Sequence[NewResult]) -> NewResult:
    """A chain's launches as one. What is written with the same value is one argument."""
    arguments: list[int] = []
    known: dict[tuple[object, int], int] = {}  # what an argument is -> its place
    places: list[list[int]] = []
    for number, (loaded, _, reads, words, inner) in enumerate(launches):
        told = {place: ("tensor", tensor) for tensor, place in reads.items()}
        told |= {place: ("word", i) for i, place in enumerate(words)}
        told |= {place: ("begin", begin) for place, begin in inner.items()}
        keys = [told.get(place, (number, place)) for place in range(loaded.arguments)]
        for key, value in zip(keys, loaded._template):
            if key not in known:
                known[key] = len(known)
                arguments.append(value)
        places.append([known[key] for key in keys])
    makes = [
        x._replace(place=None if x.place is None else own[x.place])
        for own, each in zip(places, launches) for x in each.makes
    ]  # fmt: skip
    of_tensors, of_words, begins = [
        {number: at for (own, number), at in known.items() if own == kind} for kind in ("tensor", "word", "begin")
    ]  # fmt: skip
    within = {at: begin for begin, at in begins.items()}
    loaded = _LoadedChain([x.loaded for x in launches], places, [*arguments, *[0] * bool(within)], within)
    at_words = tuple([of_words[number] for number in range(len(of_words))])
    return NewResult(loaded, tuple(makes), of_tensors, at_words, within)


@functools.lru_cache(256)
def _made(code: str, names: tuple[str, ...]) -> Callable[..., ProductCall]:
    """A function of the names' values that returns the call: to look up a name of its own costs least."""
    inner = "".join(f"    {line}\n" for line in code.splitlines())
    scope: dict[str, Any] = {}
    exec(f"def bound({', '.join(names)}):\n{inner}    return product\n", globals(), scope)
    made: Callable[..., ProductCall] = scope["bound"]
    return made


def making_code(
    new: Sequence[tuple[bool, bool]], reads: tuple[int, ...], words: int, inner: bool, count: int,
    returns: Sequence[int | None] | None, given: Given = NONE_WRITTEN,
) -> str:  # fmt: skip
    """The code of `making`. A loop over tensors would take a tenth of a call's time.

    new           tensors, as (whether an argument is its address, whether it holds something before)
    reads         the tensors that are read
    words         how many numbers
    inner         whether the launches share memory

    >>> print(making_code([(True, False)], (0, 1), 0, False, 2, None))
    def product(t0, t1, _=None):
        p0 = t0.data_ptr()
        p1 = t1.data_ptr()
        if (p0 | p1) & 15 or p0 < LEAST_ADDRESS or p1 < LEAST_ADDRESS or current_device() != index: return None
        c0 = empty_on_gpu(shape0, strides0, kind0)
        try:
            THREAD.bound
            block = free.pop()
        except (AttributeError, IndexError): block = another()
        values = block.values
        values[read0] = p0
        values[read1] = p1
        values[made0] = c0.data_ptr()
        values[stream] = raw_stream(index)
        if _OPEN: note(values)
        entry(block.pointer)
        if values[status]: refused(block)
        free.append(block)
        return c0
    """
    tensors, read = range(count), sorted(reads)
    addresses = [f"p{i}" for i in read]
    freed = " or ".join(f"{at} < LEAST_ADDRESS" for at in addresses)
    aligned = f"({' | '.join(addresses)}) & {ALIGNED} or {freed} or "
    shared = [f"p{j} < e{i} and p{i} < p{j} + span{j}" for i, j in given.pairs(read)]
    given_first, begins = [] if given.into is None else [f"t{given.into}"], given.begins
    result = ", ".join([*given_first, *["None" if i is None else f"c{i}" for i in numbers_of_new(returns, given)]])
    lines = [
        *[f"p{i} = t{i}.data_ptr(){f' + begin{i}' if begins else ''}" for i in read],
        f"if {aligned if given.aligned else ''}current_device() != index: return None",
        *["if deterministic(): return None"] * (not given.ordered),
        *[f"e{i} = p{i} + span{i}" for i in given.written],
        *[f"if {' or '.join(shared)}: return None"] * bool(shared),
        *[f"mark_written(({''.join(f't{i}, ' for i in given.written)}))"] * bool(given.written),
        *[line for i, (_, fills) in enumerate(new) for line in (
            f"c{i} = empty_on_gpu(shape{i}, strides{i}, kind{i})", *[f"fill(c{i}, first{i})"] * fills,
        )],
        *["shared = empty_on_gpu(memory, (1,), byte)"] * inner,
        "try:", "    THREAD.bound", "    block = free.pop()", "except (AttributeError, IndexError): block = another()",
        "values = block.values",
        *[f"values[read{i}] = p{i}" for i in reads],
        *[f"values[word{i}] = w{i}" for i in range(words)],
        *["values[within] = shared.data_ptr()"] * inner,
        *[f"values[made{i}] = c{i}.data_ptr()" for i, (is_argument, _) in enumerate(new) if is_argument],
        "values[stream] = raw_stream(index)", "if _OPEN: note(values)", "entry(block.pointer)",
        "if values[status]: refused(block)", "free.append(block)", f"return {result}",
    ]  # fmt: skip
    names = [*[f"t{i}" for i in tensors], *[f"w{i}" for i in range(words)], *["_=None"] * (count == 2 and not words)]
    return "\n".join([f"def product({', '.join(names)}):", *[f"    {line}" for line in lines]])


class PreparedProblem(_Loaded):
    """A problem on one GPU, ready to be launched any number of times.

    solution  what is launched
    shape     of the result, its strides, and its type `kind`
    device    index of the GPU
    simple    one launch and no copies: `launch` alone does it
    tf32      float32 operands, for which the caller's leave is asked each time
    of_matrices  True if neither operand is a vector
    spans     bytes that A, B and C reach over, from their first
    workspace bytes of an epilogue's partial results of one launch
    product   the call that makes a new result: see `making`. Its third tensor is the epilogue's one word
    gradients launches of backward passes, where the product was recorded: see `autograd.kept`
    seen      guards of these
    """

    __slots__ = (
        "_a",
        "_b",
        "_start",
        "gradients",
        "kind",
        "of_matrices",
        "product",
        "seen",
        "shape",
        "simple",
        "solution",
        "spans",
        "strides",
        "tf32",
        "workspace",
    )

    def __init__(self, problem: Problem, shape: Sequence[int], kind: torch.dtype, device: int):
        self.solution = solve(problem)
        self.shape, self.kind = tuple(shape), kind
        self.strides = contiguous_strides(self.shape)
        self.simple = self.solution.copies == _NO_COPIES and len(self.solution.launches) == 1
        self.tf32 = problem.a.dtype == "tf32"
        self.of_matrices = len(problem.a.shape) > 1 < len(problem.b.shape)
        self.gradients: dict[tuple[object, ...], object] = {}
        self.seen: dict[tuple[object, ...], list[Guard[Any]]] = {}
        self.spans = tuple([span(x) for x in (problem.a, problem.b, problem.c)])
        self.workspace = workspace(self.solution)
        self._a, self._b = (1, 0) if self.solution.kernel.choice.swapped else (0, 1)
        template = arguments(self.solution, (0, 0, 0), workers(self.solution, problem.places))
        super().__init__(kernel(self.solution), template, device, self.solution.kernel)
        self._start = self._starter((self._a, self._b, 2, *range(_WORDS, len(template))))
        self.product = self.product_as(self.shape, self.strides, kind)

    def product_as(self, shape: Sequence[int], strides: Sequence[int], kind: torch.dtype) -> ProductCall:
        """The same for a result that has another shape."""
        epilogue = self.solution.kernel.epilogue
        finishes = epilogue is not None and bool(epilogue.given)
        made = self.new_result(shape, strides, kind, (0, 1))
        return making([made._replace(reads={**made.reads, **({2: _WORDS} if finishes else {})})], 2 + finishes)

    def new_result(
        self, shape: Sequence[int], strides: Sequence[int], kind: torch.dtype, reads: tuple[int, int]
    ) -> NewResult:
        """The launch into a new result. `reads`: which tensors of a call are A and B."""
        return NewResult(self, (NewTensor(shape, strides, kind, 2),), {reads[0]: self._a, reads[1]: self._b})

    def direct(self, words: Sequence[int], at: Sequence[int]) -> DirectLaunch:
        """The one launch with an epilogue's words, of which those at `at` are addresses.

        Its launch takes the addresses of C, A and B, then those.
        """
        template = list(self._template)
        template[_WORDS : _WORDS + len(words)] = words
        places = (2, self._a, self._b, *[_WORDS + place for place in at])
        return DirectLaunch(kernel(self.solution), template, places, self.device, self.solution.kernel)

    def of_tensors(self, count: int) -> DirectLaunch:
        """The one launch. It takes the addresses of A, B and any bias, `count` in all, then C's."""
        into, *places = self.direct((0,) * (count - 2), range(count - 2)).places
        return DirectLaunch(kernel(self.solution), self._template, (*places, into), self.device, self.solution.kernel)

    def launch(self, a: int, b: int, c: int, stream: int, words: Sequence[int] = ()) -> None:
        """Launch at these addresses, on a stream of this kernel's device, which is current.

        words  the epilogue's, as `kernels.epilogue.parameters` makes them

        Raises PlanError when CUDA refuses.
        """
        self._start((a, b, c, *words), stream)

    def run(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, words: Sequence[int] = ()
    ) -> torch.Tensor:
        """C = A @ B on the current stream of their device, copies included."""
        c = torch.empty(self.shape, dtype=self.kind, device=a.device) if out is None else out
        note_target(c)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            run(self.solution, a, b, c, lambda x, y, z: self.launch(x, y, z, stream, words))
        return c


def workspace(solution: Solution) -> int:
    """Bytes of an epilogue's partial results of one launch."""
    epilogue = solution.kernel.epilogue
    if epilogue is None or not epilogue.partials:
        return 0
    return int(solution.kernel.plan(*solution.sizes).workspace)


class DirectLaunch(_Loaded):
    """A kernel and its arguments for tensors of known shapes and strides.

    arguments  of one launch; a call writes the addresses among them
    places     of the arguments that are addresses
    what       is named in errors
    launch     the launch at addresses, one for each place, on a stream of the current device. It raises PlanError when
               CUDA refuses
    """

    __slots__ = ("launch", "places")

    def __init__(
        self, compiled: CompiledGemm, arguments: Sequence[int], places: Sequence[int], device: int, what: object
    ):
        self.places = tuple(places)
        super().__init__(compiled, arguments, device, what)
        self.launch = self._starter(self.places)

    def at(self, places: Sequence[int]) -> DirectLaunch:
        """The same launch, which takes its addresses in the order of other places."""
        return DirectLaunch(self._compiled, self._template, places, self.device, self.what)

    def product(self, shape: Sequence[int], strides: Sequence[int], kind: torch.dtype) -> ProductCall:
        """The call that makes a new result. Its tensors are in the order of their places."""
        into, *places = self.places
        made = NewResult(self, (NewTensor(shape, strides, kind, into),), dict(enumerate(places)))
        return making([made], len(places))

    def into(self, begins: Sequence[int], memory: Sequence[int]) -> ProductCall:
        """The call that writes to a given tensor, which it returns. It takes `out`, then the tensors that are read.

        It returns None, without a launch, for addresses between multiples of 16, and for tensors of freed storages.

        begins  bytes from each tensor, `out` last, to what the launch takes of it.
        memory  bytes of each workspace.
        places  of the arguments: those of the tensors that are read, `out`'s, then those of workspaces
        """
        *read, of_out = range(len(begins))
        reads = {0: self.places[of_out], **{i + 1: self.places[i] for i in read}}
        spaces = zip(memory, self.places[of_out + 1 :])
        makes = tuple([NewTensor((size,), (1,), torch.uint8, place) for size, place in spaces])
        of_tensors = tuple(begins[-1:]) + tuple(begins[:-1]) if any(begins) else ()
        return making([NewResult(self, makes, reads)], len(begins), [], Given(into=0, begins=of_tensors))


def alignment(*numbers: int) -> int:
    """The largest power of two up to 16 that divides all.

    >>> alignment(0x1000, 400, 4096), alignment(0x1000, 402)
    (16, 2)
    """
    bits = VECTOR_BYTES
    for number in numbers:
        bits |= number
    return bits & -bits


def run(
    solution: Solution, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, launch: Callable[[int, int, int], object]
) -> None:
    """Make the solution's copies, launch at each place, and copy C back."""
    held = staged(solution, a, b, c)
    run_staged(solution, held, launch)
    if held[2] is not c:
        c.copy_(held[2])


def staged(solution: Solution, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A, B and C as the kernel reads and writes them. Copies, where the solution has copies."""
    *copies, of_c = solution.copies
    read = [copied(x, copy) for x, copy in zip((a, b), copies, strict=True)]
    return (*read, c if of_c is None else empty_copy(c, of_c))


def run_staged(solution: Solution, held: Sequence[torch.Tensor], launch: Callable[[int, int, int], object]) -> None:
    """Launch at each place of staged tensors."""
    sizes = [x.element_size() for x in held]
    first = [x.data_ptr() for x in held]
    for at in solution.launches:
        launch(*[p + o * size for p, o, size in zip(first, at, sizes, strict=True)])


def copied(x: torch.Tensor, copy: OperandCopy | None) -> torch.Tensor:
    """The operand, or its copy; dimensions that are stretched, and stay so, are copied once."""
    if copy is None:
        return x
    made = empty_copy(x, copy)
    if len(copy.shape) == x.ndim:
        for place, (size, kept) in enumerate(zip(x.shape, copy.shape, strict=True)):
            x = x.narrow(place, 0, 1) if kept == 1 and size != 1 else x
    made.copy_(x.expand(copy.shape))
    return made


def empty_copy(x: torch.Tensor, copy: OperandCopy) -> torch.Tensor:
    """Memory for a copy, with its strides."""
    return torch.empty(copy.elements(x.element_size()), dtype=x.dtype, device=x.device).as_strided(
        copy.shape, copy.strides
    )


def kernel(solution: Solution) -> CompiledGemm:
    """The solution's kernel: from memory, from the cache on disk, or compiled."""
    return compiled_kernel(solution.kernel)


@functools.lru_cache(MAX_KERNELS)
def compiled_kernel(kernel: Kernel) -> CompiledGemm:
    """A kernel: from memory, from the cache on disk, or compiled."""
    return compile_apart(plan_of_kernel(kernel))


def plan_of(solution: Solution) -> Any:
    """The plan of a solution, for its sizes."""
    return solution.kernel.plan(*solution.sizes)


# -------------------------------------------------------------------------------------------------------------- tensors


def span(x: StridedOperand) -> int:
    """Bytes from a tensor's first element to behind its last.

    >>> span(StridedOperand((2, 3), (8, 1), "bf16"))
    22
    """
    return elements_between(x.shape, x.strides) * dtype(x.dtype).bytes
