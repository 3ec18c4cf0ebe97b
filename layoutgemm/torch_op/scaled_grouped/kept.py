"""Kept launches of plans that read more than A and B: tables, group offsets, an epilogue's operands.

find      a kept launch: the call writes addresses, and nothing is checked but the addresses themselves
launch    the first call of a plan: all checks, copies where TMA needs them; kept where nothing was copied
keep      a prepared product with an epilogue, likewise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...errors import OperandError
from ...kernels.compile.compiler import compile_plan
from ...kernels.epilogue.parameters import Placed, words_of
from ...kernels.plan import MAX_WORDS
from ...kernels.run.epilogue_operands import words_of_tensors
from ...kernels.run.operand_checks import resolved
from ...kernels.run.torch_tensors import check_tensors, launch_of
from ...kernels.sm90.plan import Sm90Plan
from ..checks import PLAIN, modes_of_dispatch, modes_of_functions, tracing_state, transforms
from ..launch import Direct, Prepared, span
from ..operator import empty_on_gpu, raw_stream
from ..prepared import mark_written, target
from ..problem import StridedOperand, contiguous_strides

Key = tuple[object, ...]


class KeptLaunch(NamedTuple):
    """A launch for tensors of known shapes and strides.

    direct   the launch
    shape    of the result, and its type `kind`
    padding  elements from the end of a row of the result to the next row, where the result is made here
    spans    bytes from first to last element: of each tensor that is read, and of C
    mask     bits that are 0 in the addresses of all tensors but A, B and C
    """

    direct: Direct
    shape: tuple[int, ...]
    kind: torch.dtype
    padding: int
    spans: tuple[int, ...]
    mask: int


READY: dict[Key, KeptLaunch] = {}
MAX_READY = 4096  # beyond, all go
FIRST_GPU = 0  # of the indices of devices; below are CPUs
_WORD, _PAIRS = 3, 15  # a table's numbers are read one at a time, an epilogue's vectors in pairs too
_grad_enabled = torch.is_grad_enabled
_autocast = torch._C._is_any_autocast_enabled
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def find(
    read: tuple[torch.Tensor | None, ...], out: torch.Tensor | None, *options: object
) -> tuple[Key, torch.Tensor | None]:
    """(key, the result of a kept launch or None).

    read     A and B first; the key () stands for a call that cannot be kept
    options  whatever else of the call decides on the kernel
    """
    if (
        modes_of_functions() or modes_of_dispatch() or _autocast() or transforms()
        or _forward._current_level >= 0 or tracing_state() is not None
    ):  # fmt: skip
        return (), None
    recording, index = _grad_enabled(), FIRST_GPU
    parts: list[object] = [*options]
    addresses: list[int] = []
    low = 0
    try:
        for x in read:
            if x is None:
                parts.append(None)
                continue
            if type(x) not in PLAIN or (recording and x.requires_grad) or x.is_neg():
                return (), None
            if not addresses:
                index = x.get_device()
            if x.get_device() != index or index < FIRST_GPU:
                return (), None
            parts += (x.shape, x.stride(), x.dtype)
            address = x.data_ptr()
            low |= address if len(addresses) > 1 else 0
            addresses.append(address)
        if out is not None:
            if type(out) not in PLAIN or out.get_device() != index or out.requires_grad or out.is_neg():
                return (), None
            parts += (out.shape, out.stride(), out.dtype)
        key = (*parts, index)
        kept = READY.get(key)
    except (RuntimeError, TypeError):  # sparse tensors have no strides, and a configuration may have no hash
        return (), None
    if kept is None or _current_device() != index or (addresses[0] | addresses[1]) & 15 or low & kept.mask:
        return key, None
    if out is None:
        rows = (*kept.shape[:-1], kept.shape[-1] + kept.padding)
        c = empty_on_gpu(rows, contiguous_strides(rows), kept.kind)
        c = c[..., : kept.shape[-1]] if kept.padding else c
    else:
        start = out.data_ptr()
        apart = all(at + size <= start or start + kept.spans[-1] <= at for at, size in zip(addresses, kept.spans))
        if start & 15 or not apart:
            return key, None
        mark_written((out,))
        c = out
    kept.direct.launch((*addresses[:2], c.data_ptr(), *addresses[2:]), raw_stream(index))
    return key, c


def require_hopper(index: int, what: str) -> None:
    """Raise OperandError, naming the product, for a GPU that has no such kernel."""
    if target(index)[0] != "sm_90a":
        found = torch.cuda.get_device_properties(index)
        raise OperandError(
            f"{what} on cuda:{index}, {found.name}: these kernels run on compute capability 9.0 (H100, H200, GH200), "
            f"and this is {found.major}.{found.minor}"
        )


def launch(
    key: Key, plan: Sm90Plan, a: torch.Tensor, b: torch.Tensor, tables: Mapping[str, torch.Tensor],
    operands: Mapping[str, torch.Tensor], out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The product by a plan. Where nothing is copied, the launch is kept for such tensors.

    tables    what the main loop and the groups read, by name
    operands  what the epilogue reads, by name, in the order of the call

    Raises OperandError or PlanError before anything is written.
    """
    check_tensors(plan, a, b, out, {**tables, **operands})
    tables = {name: resolved(x.detach()) for name, x in tables.items()}
    operands = {name: resolved(x.detach()) for name, x in operands.items()}
    words = _words(plan, tables, operands, a.device)
    if out is not None:
        mark_written((out,))
    a, b, index = resolved(a.detach()), resolved(b.detach()), a.get_device()
    with torch.cuda.device(a.device):
        made = launch_of(plan, a, b, out, True, words)
        if made.late and out is not None and plan.ragged is not None:
            made.c.copy_(out)  # rows in no group stay
        first = len(made.arguments) - len(words)
        read = {**tables, **operands}
        places = (0, 1, 2, *[first + plan.words.index(name) for name in read])
        direct = Direct(compile_plan(plan), made.arguments, places, index, plan)
        direct.launch([made.arguments[place] for place in places], raw_stream(index))
        if made.late and out is not None:
            out.copy_(made.c)
    c: torch.Tensor = made.c if out is None else out
    if key and not made.copies and not any(x.data_ptr() & _PAIRS for x in operands.values()):
        padding = 0 if out is not None else c.stride(-2) - c.shape[-1]
        _keep(key, direct, (a, b, *read.values()), c, padding, _PAIRS if operands else _WORD)
    return c


def keep(
    key: Key, prepared: Prepared, names: Sequence[str], words: Sequence[int], read: Sequence[torch.Tensor],
    c: torch.Tensor,
) -> None:  # fmt: skip
    """Keep a prepared product with an epilogue.

    names  of all words, addresses by their operand's
    read   A, B and the epilogue's operands, in the order of the call, which is that of `names`
    """
    if key and prepared.simple and not any(x.data_ptr() & _PAIRS for x in (*read, c)):
        at = [place for place, name in enumerate(names) if name]
        _keep(key, prepared.direct(words, at), read, c, 0, _PAIRS)


def _words(
    plan: Sm90Plan, tables: Mapping[str, torch.Tensor], operands: Mapping[str, torch.Tensor], device: torch.device
) -> tuple[int, ...]:
    """The launch's sixteen words: the epilogue's, the main loop's, the groups'."""
    placed = {name: Placed(x.data_ptr(), 0, x.stride(0) if x.ndim > 1 else 0) for name, x in operands.items()}
    own = words_of(plan.epilogue, placed)[: len(plan.epilogue.words)]
    others = words_of_tensors(plan, tables, device)
    return (*own, *others[: MAX_WORDS - len(own)])


def _keep(key: Key, direct: Direct, read: Sequence[torch.Tensor], c: torch.Tensor, padding: int, mask: int) -> None:
    spans = tuple(
        [span(StridedOperand(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size() for x in (*read, c)]
    )
    if len(READY) >= MAX_READY:
        READY.clear()
    READY[key] = KeptLaunch(direct, tuple(c.shape), c.dtype, padding, spans, mask)
