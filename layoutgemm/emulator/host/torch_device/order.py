"""The bytes that torch's functions touch, on streams and in pinned memory.

A function is followed where its bytes are known: whole dense tensors, and what `__setitem__` writes. Others, as those
that gather or scatter, are left out: none of them is a false alarm.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING

from ...findings import Finding
from ...races.unordered_launches import FOUND, TouchedBytes
from ..graphs.stream_order import LEGACY, HostCopy
from .products import tensors_in
from .streams import CAPTURES, current_stream

if TYPE_CHECKING:
    from torch import Tensor

# Functions that touch a part of an argument.
_PARTLY = re.compile(
    r".*(index|scatter|gather|take|put|embedding|masked|where|select|sparse|bag|fill_diagonal|tri[lu]|grouped).*"
    r"|__[gs]etitem__"
)
# Functions that give memory without a value, or a value that does not depend on their argument's.
_FORM = re.compile(r"(new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|new_tensor|rand(n|int)?_like")
# Functions that wait for the stream, as they need values on the host or copy its pageable memory; and backward
# functions, whose work is on the streams of the forward functions, and joined.
WAITS = frozenset(
    "tensor as_tensor asarray new_tensor item tolist __bool__ __int__ __float__ __index__ __complex__ __repr__ __str__ "
    "__format__ __contains__ is_nonzero "
    "nonzero unique unique_consecutive equal allclose masked_select repeat_interleave bincount histc argwhere "
    "assert_close backward grad".split()
)
NON_BLOCKING = (
    "torch.cuda.synchronize, or a wait of the host for the stream or for an event behind the copy, before the host "
    "touches the memory orders them."
)
_LIBRARIES = ("torch", "layoutgemm", "contextlib", "functools")
MOST_CODES = 1 << 12  # codes of which it is kept whether they are a library's


def is_followed() -> bool:
    """True if there are several streams, or copies of pinned memory that may go on."""
    return CAPTURES.order.are_several or bool(CAPTURES.order.host_copies)


class TorchCall:
    """A call of torch by a script, as "torch's add (file.py:12)".

    The place in the code is kept: its line takes long to find, and few calls are reported.
    """

    __slots__ = ("_at", "_code", "_name", "_rest")

    def __init__(self, name: str, rest: str = "") -> None:
        self._name, self._rest, frame = name, rest, sys._getframe(2)
        while frame is not None and _of_library(frame):
            frame = frame.f_back  # type: ignore[assignment]
        self._code, self._at = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)

    def __str__(self) -> str:
        where = ""
        if self._code is not None:
            lines = [line for low, high, line in self._code.co_lines() if low <= self._at < high]
            where = f" ({self._code.co_filename.rpartition('/')[2]}:{lines[0] if lines else 0})"
        return f"torch's {self._name}{where}{self._rest}"


_CODES: dict[CodeType, bool] = {}  # code -> whether it is a library's


def _of_library(frame: FrameType) -> bool:
    """True for a frame of torch, or of this package. Code is of the module that first ran it."""
    found = _CODES.get(frame.f_code)
    if found is None:
        if len(_CODES) >= MOST_CODES:
            _CODES.clear()
        found = _CODES[frame.f_code] = frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
    return found


@cache
def _is_partial(name: str) -> bool:
    """True for a function that touches a part of an argument."""
    return _PARTLY.fullmatch(name) is not None


@cache
def _is_form(name: str) -> bool:
    """True for a function that reads no value of its argument."""
    return _FORM.fullmatch(name) is not None


@cache
def _is_whole_write(name: str) -> bool:
    """True for a function that writes all of its result."""
    return not (name.startswith(("empty", "new_empty")) or _is_partial(name))


def _bytes_of(x: Tensor, writes: bool) -> TouchedBytes | None:
    """The bytes of a tensor whose elements lie without gaps, or None."""
    size = x.nbytes
    if not size:
        return None
    if not x.is_contiguous() and 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) != x.numel():
        return None
    return TouchedBytes(x.data_ptr(), size, writes)


def is_plain(torch: ModuleType, tensors: Iterable[Tensor]) -> bool:
    """True for tensors with memory of their own: neither a tracer's nor a transform's."""
    kinds, strided, of_c = (torch.Tensor, torch.nn.Parameter), torch.strided, torch._C
    if of_c._len_torch_dispatch_stack():
        return False
    wrapped = of_c._functorch.is_functorch_wrapped_tensor
    for x in tensors:
        if type(x) not in kinds or x.layout is not strided or not x.is_cpu or wrapped(x):
            return False
    return True


def note(name: str, read: Iterable[Tensor], written: Iterable[Tensor], waits: bool = False) -> None:
    """Note work of the current stream that has run. `waits`: the host waits for its end."""
    pieces = [
        piece for each, writes in ((read, False), (written, True)) for x in each if (piece := _bytes_of(x, writes))
    ]
    handle = current_stream().cuda_stream
    CAPTURES.order.note(handle, TorchCall(name), pieces)
    if waits:
        CAPTURES.order.host_waits(handle)


def note_pending(name: str, host: Tensor, writes: bool) -> None:
    """Note that the current stream's latest work copies pinned memory, and goes on."""
    if (piece := _bytes_of(host, writes)) is not None:
        stream, storage = current_stream().cuda_stream, weakref.ref(host.untyped_storage())
        text = str(TorchCall(name, ", with non_blocking=True"))
        turn = CAPTURES.order.turn_of(stream)
        CAPTURES.order.host_copies.append(
            HostCopy(storage, piece.address, piece.address + piece.size, writes, stream, turn, text)
        )


def note_work(
    torch: ModuleType, name: str, args: tuple[object, ...], kwargs: dict[str, object], changed: object, done: object,
    on_gpu: Callable[[object], bool],
) -> None:  # fmt: skip
    """Note the bytes that a function of torch has touched.

    changed  the argument that it has changed in place, or None
    on_gpu   whether a tensor lies on the GPU
    """
    given = list(tensors_in(torch, (*args, *kwargs.values())))
    results = list(tensors_in(torch, [done]))
    if not is_plain(torch, (*given, *results)):
        return
    places = [] if changed is None else list(tensors_in(torch, [changed]))
    known = {x.untyped_storage().data_ptr() for x in given}
    fresh = [x for x in results if x.untyped_storage().data_ptr() not in known]
    if not (fresh or places or name in WAITS):
        return  # a view, or a question about the form
    if name == "copy_" and places and len(args) > 1 and isinstance(args[1], torch.Tensor):
        _note_copy(places[0], args[1], bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)), on_gpu)
        return
    if CAPTURES.order.host_copies:
        _look(name, [] if _is_form(name) else given, places)
    of_gpu = [x for x in given if on_gpu(x)]
    if not of_gpu and not any(map(on_gpu, results)):
        return
    read = [] if _is_form(name) else of_gpu
    written = [x for x in (*places, *fresh) if on_gpu(x)]
    if _is_partial(name):
        read, written = [], [x for x in fresh if on_gpu(x)]
        if name == "__setitem__" and _is_basic(torch, args[1]):
            written = [places[0][args[1]]]
    if name.startswith(("empty", "new_empty")):
        written = []
    note(name, read, written, name in WAITS or (bool(of_gpu) and len(of_gpu) < len(given)))
    if name == "backward":  # its work is on the streams of the forward functions, and joined with this one
        CAPTURES.order.wait_all(current_stream().cuda_stream)


def note_alone(torch: ModuleType, name: str, written: Tensor | None) -> None:
    """Note a write on the only stream. A later stream may race with it."""
    if name in WAITS:
        CAPTURES.order.host_waits(0)
    elif written is not None and _is_whole_write(name):
        on_legacy = current_stream().cuda_stream in LEGACY  # else a stream of an earlier session
        if on_legacy and is_plain(torch, (written,)) and (piece := _bytes_of(written, True)) is not None:
            CAPTURES.order.note_alone(TorchCall(name), piece)


def _is_basic(torch: ModuleType, index: object) -> bool:
    every = index if isinstance(index, tuple) else (index,)
    return all(x is None or x is ... or (isinstance(x, (int, slice)) and not isinstance(x, bool)) for x in every)


def _note_copy(to: Tensor, source: Tensor, non_blocking: bool, on_gpu: Callable[[object], bool]) -> None:
    if CAPTURES.order.host_copies:
        _look("copy_", [source], [to])
    if on_gpu(to) and on_gpu(source):
        note("copy_", [source], [to])
    elif on_gpu(to) or on_gpu(source):
        note_move("copy_", to, source, non_blocking, on_gpu)


def note_move(name: str, to: Tensor, source: Tensor, non_blocking: bool, on_gpu: Callable[[object], bool]) -> None:
    """Note a copy between the host and the GPU."""
    to_gpu = on_gpu(to)
    host = source if to_gpu else to
    goes_on = non_blocking and bool(getattr(host, "_layoutgemm_pinned", False))
    note(name, [] if to_gpu else [source], [to] if to_gpu else [], not goes_on)
    if goes_on:
        note_pending(name, host, not to_gpu)


def _look(name: str, read: Iterable[Tensor], written: Iterable[Tensor]) -> None:
    """Find races of the host with copies of pinned memory that go on."""
    order = CAPTURES.order
    copies = order.host_copies
    copies[:] = [one for one in copies if one.storage() is not None and not order.is_over(one.stream, one.turn)]
    for tensors, writes in ((written, True), (read, False)):
        for x in tensors:
            piece = _bytes_of(x, writes)
            if piece is None:
                continue
            for one in copies:
                if (writes or one.writes) and one.low < piece.address + piece.size and piece.address < one.high:
                    text = (
                        f"the host {'writes' if writes else 'reads'} {piece.size} bytes of pinned memory, by "
                        f"{TorchCall(name)}; {one.text}, {'writes' if one.writes else 'reads'} them, and may "
                        f"still run on {order.name_of(order.stream_of(one.stream))}"
                    )
                    if FOUND:
                        FOUND[-1].append(Finding("race", text, cta=None, orders=NON_BLOCKING))
                    return
