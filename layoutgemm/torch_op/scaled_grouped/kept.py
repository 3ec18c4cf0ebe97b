"""Kept launches of plans that read more than A and B. Tables, group offsets, an epilogue's operands.

find      a kept launch: the call writes addresses, and nothing is checked but the addresses themselves
launch    the first call of a plan: all checks, copies where TMA needs them; kept unless C was copied
keep      a prepared product with an epilogue, likewise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.compile.worker import compile_apart
from ...kernels.epilogue.parameters import words_of
from ...kernels.indexed.row_copy import COPIED
from ...kernels.plan import MAX_WORDS
from ...kernels.run.epilogue_operands import rows_memory, words_of_tensors
from ...kernels.run.operand_checks import resolved
from ...kernels.run.partial import is_partial
from ...kernels.run.tensor_maps import LineCopy
from ...kernels.run.torch_tensors import TensorLaunch, check_tensors, launch_of
from ..checks import PLAIN, modes_of_dispatch, modes_of_functions, tracing_state, transforms
from ..compiled.guards import (
    ALIGNED,
    FIRST_GPU,
    LEAST_ADDRESS,
    MAX_READY,
    Guard,
    KeptCalls,
    LastCalls,
    LaunchesByAddress,
    guarded,
)
from ..compiled.kept_launches import KEPT, KeptCall, Served, note_served
from ..epilogue import placed_of
from ..launch import (
    DirectLaunch,
    PreparedProblem,
    ProductCall,
    Runs,
    current_device,
    empty_on_gpu,
    mark_written,
    note_target,
    raw_stream,
    span,
)
from ..problem import StridedOperand, contiguous_strides
from ..types import GroupsPlan

Key = tuple[object, ...]
Others = Sequence["torch.Tensor | None"]


class KeptKey(NamedTuple):
    """Key of a kept launch, and its difference from the call.

    key     of the call's own tensors, or () for a call that cannot be kept
    turned  the launch computes the transpose: B^T @ A^T with the scales of each
    """

    key: Key
    turned: bool = False


NOT_KEPT = KeptKey(())


class CopiedOperands(NamedTuple):
    """Copies of operands whose strides TMA cannot read; None for what is read in place.

    a, b  of the plan's A, and of its B
    """

    a: LineCopy | None
    b: LineCopy | None


@dataclass(slots=True)
class KeptLaunch:
    """A launch for tensors of known shapes and strides.

    direct   the launch
    shape    of the result as it is made here, with its `strides` and its type `kind`
    columns  of the result, where it is made wider: its rows have a pitch that TMA stores to; else 0
    spans    bytes from first to last element: of each tensor that is read, and of C
    turned   as `KeptKey` has it
    zeros    whether a new result is zero where the kernel stores nothing
    copied   what is copied before the launch, or None
    memory   bytes of A's rows that the launch itself copies first: memory of its own, whose address is the last
    special  whether there is more to a call than a new result's memory and the launch
    product  the call that makes a new result, or None where there is more to it
    """

    direct: DirectLaunch
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype
    columns: int
    spans: tuple[int, ...]
    turned: bool
    zeros: bool
    copied: CopiedOperands | None
    memory: int = 0
    special: bool = field(init=False)
    product: ProductCall | None = field(init=False)

    def __post_init__(self) -> None:
        more = self.turned or self.zeros or self.copied is not None
        self.special = more or bool(self.columns or self.memory)
        self.product = None
        if not (self.zeros or self.columns or self.memory or self.copied is not None):
            shape, strides = [(*x[:-2], x[-1], x[-2]) if self.turned else x for x in (self.shape, self.strides)]
            self.product = self.direct.product(shape, strides, self.kind)


READY: KeptCalls[LaunchesByAddress[KeptLaunch]] = KeptCalls()
READY.on_clear.append(KEPT.clear)  # calls that are found by their arguments go too
SEEN = READY.seen
ONCE = -3  # in keys of guards: three tensors, of which the last is given twice, as both scales
Record = Callable[[ProductCall, torch.Tensor, torch.Tensor, torch.Tensor], "torch.Tensor | None"]
USUAL: dict[Key, str] = {}  # options of most calls, and the name that stands for them in keys of guards
PLANS: dict[Key, tuple[GroupsPlan, str]] = {}  # of launches that are not kept, and why
_grad_enabled = torch.is_grad_enabled
_autocast = torch._C._is_any_autocast_enabled


class UsualCalls(NamedTuple):
    """Calls of tensors alone, of one kind.

    name    of the call's options in `USUAL`
    form    of what a guard looks at, in its key
    last    products that a guard held for last, by the id of a tensor of the call
    record  makes the result of three tensors where its derivative is recorded, or None
    """

    name: str
    form: int
    last: LastCalls
    record: Record | None = None


def usual_calls(name: str, form: int, key: int, order: Sequence[int], record: Record | None = None) -> UsualCalls:
    """Calls of a kind, of which none was made yet. `key`, `order`: as `LastCalls` has them."""
    return UsualCalls(name, form, LastCalls(key, order, READY.on_clear), record)


def usual_again(usual: UsualCalls, *given: torch.Tensor) -> torch.Tensor | None:
    """The new result of a kept launch that a guard finds. None leaves the call to `find`."""
    try:  # but for one scale twice, the last one has been looked for: see `repeated_first`
        found: torch.Tensor | None = usual.last.again(*given) if usual.form == ONCE else None
        return _usual(usual, given) if found is None else found
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors
        return None


def _usual(usual: UsualCalls, given: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """The same, found by a guard by shapes, and noted."""
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return None
    tensors = [given[place] for place in usual.last.order]
    for check, records, launches in SEEN.get((usual.name, tensors[0].shape, tensors[1].shape, usual.form), ()):
        if check(*tensors):
            kept = launches.get(())
            if kept is None or kept.product is None:
                return None
            product = _of_three(kept.product) if usual.form == ONCE else kept.product
            call = _recording(product, usual.record) if records else product
            usual.last.note(id(given[usual.last.key]), Guard(check, records, call))
            again: torch.Tensor | None = call(*tensors)
            return again
    return None


def _recording(product: ProductCall, record: Record | None) -> ProductCall:
    """The call of tensors that have derivatives: recorded by `record`, or None, where derivatives are."""

    def call(*tensors: torch.Tensor) -> torch.Tensor | None:
        if not _grad_enabled():
            made: torch.Tensor | None = product(*tensors)
            return made
        return None if record is None else record(product, *tensors)

    return call


def _of_three(product: ProductCall) -> ProductCall:
    """The call whose fourth tensor is its third."""
    return lambda a, b, third: product(a, b, third, third)


def find(
    a: torch.Tensor, b: torch.Tensor, third: torch.Tensor, fourth: torch.Tensor | None, others: Others,
    out: torch.Tensor | None, options: Key, recorded: bool = False,
) -> tuple[Key, torch.Tensor | None]:  # fmt: skip
    """(key, the result of a kept launch or None). The key () stands for a call that cannot be kept.

    third, fourth  scales, or the groups and any scales of A
    others         whatever else is read, with None for what is not; () for nothing
    options        whatever else of the call decides on the kernel
    recorded       whether the caller records the derivative of what a guard finds

    A guard finds a call that was made twice before: it fails in transforms and traces, too. Else one expression reads
    each tensor's facts: a loop over four tensors takes twice the time.
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return (), None
    given: tuple[torch.Tensor, ...] = (a, b, third) if fourth is None else (a, b, third, fourth)
    tensors: tuple[torch.Tensor, ...] = given
    form: object = len(given)
    if others or out is not None or a is b:
        given, tensors, form = _of_form(given, others, out)
    elif third is fourth:
        tensors, form = given[:3], ONCE
    kept: LaunchesByAddress[KeptLaunch] | None = None
    try:
        short: Key = (USUAL.get(options, options), a.shape, b.shape, form)
        for check, records, launches in SEEN.get(short, ()):
            if check(*tensors) and (recorded or not (records and _grad_enabled())):
                kept = launches
                break
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors, or a configuration without a hash
        return (), None
    if kept is not None and (found := again(kept, given, a, b, out)) is not None:
        note_served(partial(_served, kept, given, out, found))
        return (), found
    if tracing_state() is not None:
        return (), None
    key, found = by_facts(a, b, third, fourth, others, out, options)
    by_key = None if found is None else READY.get(key)  # another thread may have dropped it meanwhile
    if by_key is not None and kept is not by_key:
        guarded(SEEN, short, tensors, by_key, MAX_READY)
    return key, found


def _of_form(
    given: tuple[torch.Tensor, ...], others: Others, out: torch.Tensor | None
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], Key]:
    """(what is read, the tensors of a guard, part of its key) of any call: a guard wants different objects."""
    (a, b, third), fourth = given[:3], given[3] if len(given) > 3 else None
    same, twice = a is b, third is fourth
    form = same, twice, fourth is None, out is None, *[x is None for x in others]
    more = tuple([x for x in others if x is not None])
    tensors = (*(given[1:2] if same else given[:2]), *(given[2:3] if twice else given[2:]), *more)
    return (*given, *more), tensors if out is None else (*tensors, out), form


def _served(
    launches: LaunchesByAddress[KeptLaunch], given: Sequence[torch.Tensor], out: torch.Tensor | None, c: torch.Tensor
) -> Served | None:
    """The kept call that made `c`; None for copied operands, odd addresses, and a new result that is a view."""
    kept = launches.get(())
    if kept is None or kept.copied is not None or any(x.data_ptr() & ALIGNED for x in given):
        return None
    if out is None and (kept.columns or kept.turned):
        return None
    into, *places = kept.direct.places
    memory: tuple[tuple[int, Runs], ...] = ((kept.memory, ()),) if kept.memory else ()
    count = len(places) - len(memory)  # of the tensors that are read
    direct = kept.direct.at((*places[:count], into, *places[count:]))
    result, written = ((kept.shape, kept.strides, kept.kind), ()) if out is None else (None, (count,))
    clears = kept.zeros and out is None
    call = KeptCall(direct, result, None, kept.spans, written, (), memory, (), clears)
    return Served(call, given if out is None else (*given, out), c)


def again(
    launches: LaunchesByAddress[KeptLaunch], given: Sequence[torch.Tensor], a: torch.Tensor, b: torch.Tensor,
    out: torch.Tensor | None,
) -> torch.Tensor | None:  # fmt: skip
    """The result of a kept launch for tensors that a guard holds for. None where none is for their addresses."""
    kept = launches.get(()) if out is None else None
    if kept is not None and kept.product is not None and (found := kept.product(*given)) is not None:
        return found
    return _at_many(launches, given, a, b, out)


def _at_many(
    launches: LaunchesByAddress[KeptLaunch], given: Sequence[torch.Tensor], a: torch.Tensor, b: torch.Tensor,
    out: torch.Tensor | None,
) -> torch.Tensor | None:  # fmt: skip
    """`again` for any number of tensors, at any addresses, with an output too."""
    addresses, low = [x.data_ptr() for x in given], 0
    for at in addresses:
        low |= at
    kept = launches.at(addresses, low)
    if kept is None or current_device() != (index := kept.direct.device):
        return None
    if out is not None or kept.special:
        return _special(kept, addresses, a, b, out, index)
    c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
    kept.direct.launch((c.data_ptr(), *addresses), raw_stream(index))
    return c


def by_facts(
    a: torch.Tensor, b: torch.Tensor, third: torch.Tensor, fourth: torch.Tensor | None, others: Others,
    out: torch.Tensor | None, options: Key,
) -> tuple[Key, torch.Tensor | None]:  # fmt: skip
    """`find` by a key of all facts of the tensors."""
    if not (type(a) in PLAIN and type(b) in PLAIN and type(third) in PLAIN) or _autocast() or transforms():
        return (), None
    try:
        index, recording = a.get_device(), _grad_enabled()
        if (
            a.is_neg() or b.is_neg() or third.is_neg()
            or b.get_device() != index or third.get_device() != index or index < FIRST_GPU
            or (recording and (a.requires_grad or b.requires_grad or third.requires_grad))
        ):  # fmt: skip
            return (), None
        at_a, at_b, at_third = a.data_ptr(), b.data_ptr(), third.data_ptr()
        low = at_a | at_b | at_third
        addresses: tuple[int, ...]
        if fourth is None:
            key: Key = (options, index, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, third.shape,
                        third.stride(), third.dtype)  # fmt: skip
            addresses = at_a, at_b, at_third
        else:
            if (
                type(fourth) not in PLAIN or fourth.is_neg() or fourth.get_device() != index
                or (recording and fourth.requires_grad)
            ):  # fmt: skip
                return (), None
            key = (options, index, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, third.shape,
                   third.stride(), third.dtype, fourth.shape, fourth.stride(), fourth.dtype)  # fmt: skip
            at_fourth = fourth.data_ptr()
            addresses, low = (at_a, at_b, at_third, at_fourth), low | at_fourth
        if others:
            facts = _facts(others, index, recording)
            if facts is None:
                return (), None
            key, addresses, low = (*key, facts[0]), (*addresses, *facts[1]), low | facts[2]
        if out is not None:
            if type(out) not in PLAIN or out.get_device() != index or out.requires_grad or out.is_neg():
                return (), None
            if out.is_inference() and not torch.is_inference_mode_enabled():  # `check_operands` refuses it
                return (), None
            key = (*key, "out", out.shape, out.stride(), out.dtype)
        launches = READY.get(key)
    except (RuntimeError, TypeError):  # sparse tensors have no strides, and a configuration may have no hash
        return (), None
    kept = None if launches is None else launches.at(addresses, low)
    if kept is None or current_device() != index:
        return key, None
    if out is not None or kept.special:
        return key, _special(kept, addresses, a, b, out, index)
    c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
    kept.direct.launch((c.data_ptr(), *addresses), raw_stream(index))
    return key, c


def _facts(others: Others, index: int, recording: bool) -> tuple[Key, list[int], int] | None:
    """Part of the key for further tensors, their addresses, and all bits of these.

    None where one of them cannot be kept.
    """
    parts: list[object] = []
    addresses: list[int] = []
    low = 0
    for x in others:
        if x is None:
            parts.append(None)
            continue
        if type(x) not in PLAIN or x.get_device() != index or (recording and x.requires_grad) or x.is_neg():
            return None
        parts += (x.shape, x.stride(), x.dtype)
        addresses.append(x.data_ptr())
        low |= addresses[-1]
    return tuple(parts), addresses, low


def _special(
    kept: KeptLaunch, addresses: Sequence[int], a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, index: int
) -> torch.Tensor | None:
    """The result of a kept launch at these addresses; None where its output would be refused."""
    if out is None:
        c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
        at_c = c.data_ptr()
        if kept.zeros:
            c.zero_()
        if kept.columns:
            c = c.narrow(-1, 0, kept.columns)
        if kept.turned:
            c = c.mT
    else:
        c, at_c = out, out.data_ptr()
        end = at_c + kept.spans[-1]
        if at_c & ALIGNED or at_c < LEAST_ADDRESS:
            return None
        for at, size in zip(addresses, kept.spans):
            if at < end and at_c < at + size:
                return None
        mark_written((out,))
    if kept.copied is not None:
        # Copies live until the launch; the allocator keeps the order of a stream.
        read = _copies(kept.copied, a, b, kept.turned)
        addresses = (*[at if x is None else x.data_ptr() for x, at in zip(read, addresses)], *addresses[2:])
    if kept.memory:
        rows = empty_on_gpu((kept.memory,), (1,), torch.uint8)  # likewise
        addresses = (*addresses, rows.data_ptr())
    kept.direct.launch((at_c, *addresses), raw_stream(index))
    return c


def _copies(
    copied: CopiedOperands, a: torch.Tensor, b: torch.Tensor, turned: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The copies that a launch reads in place of a call's a and b; None for what it reads in place."""
    left, right = (b.mT, a.mT) if turned else (a, b)
    of_a = None if copied.a is None else copied.a.of(left)
    of_b = None if copied.b is None else copied.b.of(right)
    return (of_b, of_a) if turned else (of_a, of_b)


def memory_beside(
    x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], kind: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """Memory on a tensor's device, which takes half the time on the current GPU."""
    index = x.get_device() if type(x) in PLAIN else FIRST_GPU - 1
    if index >= FIRST_GPU and index == current_device():
        return empty_on_gpu(shape, strides, kind)
    return torch.empty_strided(shape, strides, dtype=kind, device=x.device)


def launch(
    keeping: KeptKey, plan: GroupsPlan, a: torch.Tensor, b: torch.Tensor, tables: Mapping[str, torch.Tensor],
    operands: Mapping[str, torch.Tensor], out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The product by a plan. Unless C is copied, the launch is kept for such tensors at such addresses.

    tables    what the main loop and the groups read, by name, in the order of the call
    operands  what the epilogue reads, by name, likewise; of a turned product both are in the transpose's order

    Raises OperandError or PlanError before anything is written.
    """
    check_tensors(plan, a, b, out, {**tables, **operands})
    tables = {name: resolved(x.detach()) for name, x in tables.items()}
    operands = {name: resolved(x.detach()) for name, x in operands.items()}
    memory = rows_memory(plan, a.device)
    words = _words(plan, tables, operands, a.device, memory)
    if out is not None:
        mark_written((out,))
    a, b, index = resolved(a.detach()), resolved(b.detach()), a.get_device()
    with torch.cuda.device(a.device):
        made = launch_of(plan, a, b, out, True, words)
        _keep_rows(plan, made, out)
        note_target(made.c, cleared=out is None and is_partial(plan))
        first = len(made.arguments) - len(words)
        read = {**tables, **operands}
        places = [0, 1, *[first + plan.words.index(name) for name in read]]
        order = _order(list(read)) if keeping.turned else range(len(places))
        # C's address, those of the call's tensors, and that of the memory for A's rows.
        own = [first + plan.words.index(COPIED)] if plan.copies_rows else []
        direct = DirectLaunch(compile_apart(plan), made.arguments, (2, *[places[i] for i in order], *own), index, plan)
        direct.launch([made.arguments[place] for place in direct.places], raw_stream(index))
        if made.late and out is not None:
            out.copy_(made.c)
    c: torch.Tensor = made.c if out is None else out
    if keeping.key and not made.late:
        tensors = (a, b, *read.values())
        copies = [
            None
            if x.data_ptr() == lines.data_ptr()
            else LineCopy(operand.order != "row", lines.stride(-2), tuple(lines.shape[:-2]))
            for x, lines, operand in zip((a, b), made.read, (plan.a, plan.b))
        ]
        copied = CopiedOperands(*copies) if any(copies) else None
        zeros = is_partial(plan)
        size = 0 if memory is None else memory.numel()
        _keep(keeping, direct, [tensors[i] for i in order], c, out is None, zeros, copied, size)
    return c


def _keep_rows(plan: GroupsPlan, made: TensorLaunch, out: torch.Tensor | None) -> None:
    """Keep rows in no group, where C is stored beside the output and then copied."""
    if made.late and out is not None and plan.ragged is not None and not plan.ragged.clears:
        made.c.copy_(out)


def launch_once(
    plan: GroupsPlan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, words: Sequence[int]
) -> torch.Tensor:
    """Launch a plan into C, or a new one. Of the words the caller knows all. Nothing is kept."""
    index = a.get_device()
    with torch.cuda.device(a.device):
        made = launch_of(plan, a, b, c, True, tuple(words))
        if plan.epilogue.stores_c:
            _keep_rows(plan, made, c)
        note_target(made.c, cleared=c is None and is_partial(plan))
        DirectLaunch(compile_apart(plan), made.arguments, (), index, plan).launch((), raw_stream(index))
        if made.late and c is not None and plan.epilogue.stores_c:
            c.copy_(made.c)
    found: torch.Tensor = made.c if c is None else c
    return found


def _order(names: Sequence[str]) -> list[int]:
    """Places of a call's tensors among those of its transposed product.

    names  of what the transpose reads behind A and B

    >>> _order(["offsets", "scale_a", "scale_b"])
    [1, 0, 2, 4, 3]
    """
    at = {name: place for place, name in enumerate(names, 2)}
    other = {"scale_a": "scale_b", "scale_b": "scale_a"}
    return [1, 0, *[at[other.get(name, name)] for name in names]]


def keep(
    key: Key, prepared: PreparedProblem, names: Sequence[str], words: Sequence[int], read: Sequence[torch.Tensor],
    c: torch.Tensor,
) -> None:  # fmt: skip
    """Keep a prepared product with an epilogue.

    names  of all words, addresses by their operand's
    read   A, B and the epilogue's operands, in the order of the call, which is that of `names`
    """
    if key and prepared.simple and not c.data_ptr() & ALIGNED:
        at = [place for place, name in enumerate(names) if name]
        _keep(KeptKey(key), prepared.direct(words, at), read, c, False)


def _words(
    plan: GroupsPlan, tables: Mapping[str, torch.Tensor], operands: Mapping[str, torch.Tensor], device: torch.device,
    memory: torch.Tensor | None,
) -> tuple[int, ...]:  # fmt: skip
    """The launch's sixteen words: the epilogue's, the main loop's, the groups'."""
    placed = {each.name: placed_of(each, operands[each.name]) for each in plan.epilogue.given}
    own = words_of(plan.epilogue, placed)[: len(plan.epilogue.words)]
    others = words_of_tensors(plan, tables, device, None, memory)
    return (*own, *others[: MAX_WORDS - len(own)])


def _keep(
    keeping: KeptKey,
    direct: DirectLaunch,
    read: Sequence[torch.Tensor],
    c: torch.Tensor,
    padded: bool,
    zeros: bool = False,
    copied: CopiedOperands | None = None,
    memory: int = 0,
) -> None:
    """Keep a launch.

    read    in the order of the call
    padded  whether C was made here, in rows that may be longer than its own
    """
    spans = tuple(
        [span(StridedOperand(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size() for x in (*read, c)]
    )
    rows = tuple(c.shape)
    columns = rows[-1] if padded and c.stride(-2) != rows[-1] else 0
    made = (*rows[:-1], c.stride(-2)) if columns else rows
    if len(READY) >= MAX_READY and keeping.key not in READY:
        READY.clear()
    kept = KeptLaunch(
        direct, made, contiguous_strides(made), c.dtype, columns, spans, keeping.turned, zeros, copied, memory
    )
    READY.setdefault(keeping.key, LaunchesByAddress()).keep([x.data_ptr() for x in read], kept)
