"""The bytes that torch's functions touch, on streams and in pinned memory.

A function is followed where its bytes are known: whole dense tensors, and what `__setitem__` writes. Others, as those
that gather or scatter, are left out: none of them is a false alarm.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
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


def is_followed() -> bool:
    """True if there are several streams, or copies of pinned memory that may go on."""
    return CAPTURES.order.are_several or bool(CAPTURES.order.host_copies)


def calling_line() -> str:
    """The line of the script that calls torch, as " (file.py:12)"."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _LIBRARIES:
            return f" ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _bytes_of(x: Tensor, writes: bool) -> TouchedBytes | None:
    """The bytes of a tensor whose elements lie without gaps, or None."""
    count = x.numel()
    if not count:
        return None
    if not x.is_contiguous() and 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) != count:
        return None
    return TouchedBytes(x.data_ptr(), count * x.element_size(), writes)


def is_plain(torch: ModuleType, tensors: Iterable[Tensor]) -> bool:
    """True for tensors with memory of their own: neither a tracer's nor a transform's."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not torch._C._len_torch_dispatch_stack() and all(
        type(x) in kinds and x.layout is torch.strided and x.device.type == "cpu" and not wrapped(x) for x in tensors
    )


def note(name: str, read: Iterable[Tensor], written: Iterable[Tensor], waits: bool = False) -> None:
    """Note work of the current stream that has run. `waits`: the host waits for its end."""
    pieces = [piece for x in read if (piece := _bytes_of(x, False)) is not None]
    pieces += [piece for x in written if (piece := _bytes_of(x, True)) is not None]
    handle = current_stream().cuda_stream
    CAPTURES.order.run(handle, _nothing, f"torch's {name}{calling_line()}", pieces)
    if waits:
        CAPTURES.order.host_waits(handle)


def _nothing() -> None:
    """The work has been done."""


def note_pending(name: str, host: Tensor, writes: bool) -> None:
    """Note that the current stream's latest work copies pinned memory, and goes on."""
    if (piece := _bytes_of(host, writes)) is not None:
        stream, storage = current_stream().cuda_stream, weakref.ref(host.untyped_storage())
        text = f"torch's {name}{calling_line()}, with non_blocking=True"
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
        _look(name, [] if _FORM.fullmatch(name) else given, places)
    of_gpu = [x for x in given if on_gpu(x)]
    if not of_gpu and not any(map(on_gpu, results)):
        return
    read = [] if _FORM.fullmatch(name) else of_gpu
    written = [x for x in (*places, *fresh) if on_gpu(x)]
    if _PARTLY.fullmatch(name):
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
    elif written is not None and not name.startswith(("empty", "new_empty")) and not _PARTLY.fullmatch(name):
        on_legacy = current_stream().cuda_stream in LEGACY  # else a stream of an earlier session
        if on_legacy and is_plain(torch, (written,)) and (piece := _bytes_of(written, True)) is not None:
            CAPTURES.order.note_alone(f"torch's {name}{calling_line()}", piece)


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
                        f"the host {'writes' if writes else 'reads'} {piece.size} bytes of pinned memory, by torch's "
                        f"{name}{calling_line()}; {one.text}, {'writes' if one.writes else 'reads'} them, and may "
                        f"still run on {order.name_of(order.stream_of(one.stream))}"
                    )
                    if FOUND:
                        FOUND[-1].append(Finding("race", text, cta=None, orders=NON_BLOCKING))
                    return
