"""A checked call of a composed product, computed now. One kernel does it, or float64 on the CPU.

    sums       each A by its B, in float64; two pairs are added, and several sums combined
    epilogue   in float32, as `Epilogue.reference`; bias and activation in float64
    stores     the tiles of the order, in the rows that the indices name; `out` keeps all others

On the CPU the plan is derived too: what no kernel computes is refused there as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.indexed.added_rows import sorts_rows
from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.operands.combined import Combined
from ...kernels.orders import clusters_of_plan, schedule_of
from ...kernels.plan import MAX_WORDS, present
from ...kernels.run.epilogue_operands import (
    further_of_tensors,
    kept_list,
    order_words,
    rows_memory,
    rows_memory_words,
    rows_of_tensors,
    vectors_of_tensors,
    words_of_tensors,
)
from ...kernels.run.partial import is_partial
from ...kernels.run.torch_tensors import launch_of
from ...kernels.sm90.plan import Sm90Plan
from ...kernels.sm100.plan import Sm100Plan
from ...kernels.verbs import named
from ...schedule.listed import TileList
from ..bias_activation import GATES, by_torch
from ..checks import copied
from ..epilogue import check_order, finish_of, readable_gate, reduce_nothing, reference_of
from ..indexed.added import added
from ..indexed.torch_rows import gathered, scattered
from ..launch import DirectLaunch, fill, mark_written, note_list, note_target, note_workspace, raw_stream
from ..operands.pairs import computed_pairs
from ..operands.several import BY_MMA_SYNC, combined_sums
from ..prepared import Config, gpu, on_gpu, target
from ..problem import reads_by_tma
from ..prologue import product as prologues
from ..prologue.apart import Ways, ways_of
from ..prologue.product import PrologueProduct, function_of
from ..reference import exact, rounded
from ..scaled_grouped.recipes import SCALES
from ..scaled_grouped.scaled import promoted_sums
from .checks import ComposedCall, epilogue_of, further_operands, sums_gate
from .parts import ADD_ROWS, BIAS, OWN, PLACED, ROW_WEIGHTS, AskedParts, parts_of_text, parts_text
from .plans import Plan, ReadyPlan, check_mirror, ready_plan, visited


def factors(call: ComposedCall) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The matrices that are multiplied. A's chosen rows, or the function of A, by each B."""
    parts, a = call.parts, list(call.a)
    if ROWS in parts.own:
        a[0] = gathered(a[0], call.values[ROWS])
    if parts.prologue is not None:
        a[0] = function_of(a[0], parts.prologue, {name: call.values[name] for name in parts.prologue.names})
    return call._replace(a=a).pairs


def together(call: ComposedCall, sums: list[torch.Tensor]) -> torch.Tensor:
    """One matrix of the products: pairs added, sums combined, or left for a gate."""
    how = call.parts.how
    if len(call.a) > 1:
        half = len(sums) // 2
        sums = [one + other for one, other in zip(sums[:half], sums[half:], strict=True)]
    if how is not None and isinstance(sums_gate(call), tuple):
        return torch.cat(sums, -1)
    if how is not None:
        return combined_sums(how, sums, {name: call.values[name] for name in how.numbers})
    return sums[0]


def finished(call: ComposedCall, value: torch.Tensor) -> torch.Tensor:
    """Bias, activation or gate, and weights of rows by torch, in the sums' type. Rounded once."""
    parts, values = call.parts, call.values
    if parts.gate is not None:
        gate, up = value.chunk(2, -1)
        value = by_torch(gate, None, GATES[str(parts.activation)], value.dtype) * up
    elif BIAS in parts.own or parts.activation is not None:
        kind = value.dtype if value.dtype.is_floating_point else call.kind
        value = by_torch(value, values[BIAS] if BIAS in parts.own else None, parts.activation, kind)
    if ROW_WEIGHTS in parts.own:
        value = value * values[ROW_WEIGHTS][:, None]
    return rounded(value, call.kind)


def placed(
    call: ComposedCall, value: torch.Tensor, inside: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    """The product's elements in the result. The visited ones, in the rows that the indices name."""
    vectors = {name: call.values[name] for name in (OUT_ROWS, ADD_ROWS) if name in call.parts.own}
    if out is not None:
        return stored(value, inside, vectors, out)
    if vectors:
        return _in_rows(value, inside, vectors, value.new_zeros(call.result))
    return value if inside is None else torch.where(inside, value, value.new_zeros(()))


def stored(
    value: torch.Tensor, inside: torch.Tensor | None, vectors: Mapping[str, torch.Tensor], out: torch.Tensor
) -> torch.Tensor:
    """A product with its rows in order, in `out`. The visited elements, in the rows that the indices name, or all.

    vectors  by name, those of rows of the result among them. Rows are added in float32, and rounded once
    """
    return copied(_in_rows(value, inside, vectors, out), out)


def _in_rows(
    value: torch.Tensor, inside: torch.Tensor | None, vectors: Mapping[str, torch.Tensor], into: torch.Tensor
) -> torch.Tensor:
    if (names := vectors.get(ADD_ROWS)) is not None:
        return added(into, names, value)
    if (rows := vectors.get(OUT_ROWS)) is None:
        return value if inside is None else torch.where(inside, value, into)
    if inside is not None:
        value = torch.where(inside, value, gathered(into, rows))
    return scattered(into, rows, value)


def computed(call: ComposedCall, config: Config | None, out: torch.Tensor | None) -> torch.Tensor:
    """The product of a checked call; no derivative is recorded.

    Raises OperandError or PlanError for a product without a kernel, before anything is written.
    """
    parts = call.parts
    if call.plain_pairs and (
        not on_gpu(call.a[0].get_device()) or reads_by_tma(target(call.a[0].get_device(), config)[0])
    ):
        bias = call.values[BIAS] if BIAS in parts.own else None
        return computed_pairs(call.a, call.b, bias, parts.activation, call.kind, config, out)
    if 0 in call.shape:
        return _of_nothing(call, out)
    if 0 in (call.rows, *[x.shape[-1] for x in call.a], *call.a[0].shape):
        sizes = f"shape {list(call.shape)} over K = {', '.join(str(x.shape[-1]) for x in call.a)}"
        raise OperandError(f"a product with several parts, of {sizes}: no size may be 0")
    if call.of_rows and len(call.shape) > 2:
        value = computed(call.as_rows, config, None).reshape(call.shape)
        return value if out is None else out.copy_(value)
    if len(call.shape) > 2 and call.shape[0] == 1:
        one = computed(_of_one(call), config, None if out is None else out[0])
        return (one[None] if parts.stores_c else one) if out is None else out
    call = _resolved(call)
    own = epilogue_of(call)
    finish = None if own is None else finish_of(own, {x.name: call.values[x.name] for x in own.given}, call.shape)
    epilogue = None if finish is None else finish.epilogue
    if (ways := ways_of_call(call, config, epilogue)) is not None and ways.apart:
        return computed(with_function_applied(call), config, out)
    ready = ready_plan(call, config, epilogue)
    if parts.order is not None:
        check_mirror(ready.plan, call)
    if not on_gpu(call.a[0].get_device()):
        return _by_reference(call, ready, out)
    return _launched(call, ready, finish.words if finish is not None else (), out)


def _of_nothing(call: ComposedCall, out: torch.Tensor | None) -> torch.Tensor:
    """A product without elements: `out` as it is, or zeros; the reductions of no element at all."""
    if call.parts.epilogue is not None:
        reduce_nothing(call.parts.epilogue, call.values)
    return call.a[0].new_zeros(call.result, dtype=call.kind) if out is None else out


def ways_of_call(call: ComposedCall, config: Config | None, epilogue: Epilogue | None) -> Ways | None:
    """Both ways of a function of A on a GPU without wgmma. None elsewhere, and without such a function.

    epilogue  as the kernel takes it
    """
    a, prologue = call.a[0], call.parts.prologue
    if prologue is None or not on_gpu(a.get_device()) or reads_by_tma(target(a.get_device(), config)[0]):
        return None
    room, _ = gpu(a.get_device())
    if len(call.a) > 1:  # no kernel has a function of the first pair's A
        return Ways(math.inf, 0.0, a.numel() * a.element_size())
    plan = ready_plan(call, config, epilogue).plan
    assert not isinstance(plan, Sm100Plan)  # which has no prologue
    return ways_of(plan, prologue, room.multiprocessors)


def with_function_applied(call: ComposedCall) -> ComposedCall:
    """The call with f(A) in A's place, computed by torch."""
    parts, prologue = call.parts, present(call.parts.prologue)
    values = {name: x for name, x in call.values.items() if name not in prologue.names}
    text = parts_text(
        parts.asked._replace(prologue=None), len(call.b) // len(call.a), parts.own, [x for x in values if x not in OWN]
    )
    first = function_of(call.a[0], prologue, {name: call.values[name] for name in prologue.names})
    return call._replace(a=[first, *call.a[1:]], parts=parts_of_text(text), values=values)


def _of_one(call: ComposedCall) -> ComposedCall:
    """A batch of one as a product of two matrices, with its operands."""
    values, parts = dict(call.values), call.parts
    for operand in epilogue.given if (epilogue := parts.epilogue) is not None else ():
        if operand.axes and values[operand.name].ndim > operand.rank:
            values[operand.name] = values[operand.name][0]
    for name in (*(parts.prologue.names if parts.prologue is not None else ()), *SCALES[: len(parts.promotes or ())]):
        values[name] = values[name][0]
    return call._replace(a=[x[0] for x in call.a], b=[x[0] for x in call.b], values=values, shape=call.shape[1:])


def _resolved(call: ComposedCall) -> ComposedCall:
    """The call with its tensors' values in memory, vectors of indices one after the other."""

    def settled(name: str, x: torch.Tensor) -> torch.Tensor:
        x = x.resolve_neg()
        own = (BIAS, *PLACED, ROW_WEIGHTS, *(call.parts.prologue.names if call.parts.prologue else ()))
        return x.contiguous() if name in own else x

    values = {name: settled(name, x) if isinstance(x, torch.Tensor) else x for name, x in call.values.items()}
    a, b = ([x.detach().resolve_neg() for x in several] for several in (call.a, call.b))
    return call._replace(a=a, b=b, values=values)


def _by_reference(call: ComposedCall, ready: ReadyPlan, out: torch.Tensor | None) -> torch.Tensor:
    """The float64 product where the plan stores it."""
    call, parts, inside = call.gathered, call.parts, visited(call, ready)
    multiplied = factors(call)
    if parts.triangles is not None:
        left, right = [x.to(torch.float64).numpy() for x in multiplied[0]]
        parts.triangles.check(left, right, "a" if parts.prologue is None else "f(a)")
    of_a, of_b = ([call.values[name]] if name in parts.own else [] for name in SCALES)
    tables = [x for whole in of_b for x in whole.chunk(len(call.b), -2)]  # of each b; none, or one for all
    sums = [
        exact(a, b) if parts.promotes is None else promoted_sums(parts.promotes, a, b, *of_a, *tables[i : i + 1])
        for i, (a, b) in enumerate(multiplied)
    ]
    value = together(call, [x.double() for x in sums] if len(sums) > 1 else sums)
    if parts.epilogue is None:
        return placed(call, finished(call, value), inside, out)
    given = {operand.name: call.values[operand.name] for operand in parts.epilogue.given}
    value = reference_of(value.float(), call.kind, parts.epilogue, given, None, sums_gate(call), inside)
    return placed(call, value, inside, out) if parts.stores_c else value.new_empty(0)


# --------------------------------------------------------------------------------------------------------- on a GPU


def _launched(
    call: ComposedCall, ready: ReadyPlan, words: tuple[int, ...], out: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """One launch on the current stream of the operands' device; `words`: the epilogue's."""
    plan, parts = ready.plan, call.parts
    check_order(plan.epilogue)
    a, b = call.a[0], call.b[0] if parts.gate is None else readable_gate(call.b[0])
    c, device = out, a.device
    if c is None and not parts.stores_c:
        c = torch.empty(call.shape, dtype=call.kind, device="meta")
    with torch.cuda.device(device):
        workspace, rows = _partials(plan, device), rows_memory(plan, device)
        if not sorts_rows(plan):
            note_workspace(rows)
        held: list[torch.Tensor] = []  # copies of further matrices, which live until the launch
        found = _words(call, plan, words, workspace, rows, held)
        made = launch_of(plan, a, b, c, True, found)
        schedule = schedule_of(plan)
        if isinstance(schedule, TileList) and schedule.schedule is not None:
            note_list(kept_list(schedule, clusters_of_plan(plan), device))
        mark_written([*[call.values[name] for name in parts.written], *([] if out is None else [out])])
        if parts.stores_c:
            note_target(made.c, cleared=out is None and is_partial(plan))
        index = a.get_device()
        DirectLaunch(ready.compiled, made.arguments, (), index, plan).launch((), raw_stream(index))
        if made.late and parts.stores_c:
            present(out).copy_(made.c)
    if not parts.stores_c:
        return a.new_empty(0, dtype=call.kind)
    result: torch.Tensor = made.c if out is None else out
    return result


def _partials(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Memory of a launch's partial results, or None; of tiles left out it holds what a reduction begins with."""
    if not plan.epilogue.partials:
        return None
    made = torch.empty(max(16, plan.partial_bytes), dtype=torch.uint8, device=device)
    fill(made, plan.first_partials)
    note_workspace(made, plan.first_partials)
    return made


def _words(
    call: ComposedCall, plan: Plan, epilogue: tuple[int, ...], workspace: torch.Tensor | None,
    rows: torch.Tensor | None, held: list[torch.Tensor],
) -> tuple[int, ...]:  # fmt: skip
    """The sixteen words of a launch: the epilogue's, then those of the other parts."""
    own = list(epilogue[: len(plan.epilogue.words)])
    if workspace is not None:
        own[-1] = workspace.data_ptr()
    parts, device = call.parts, call.a[0].device
    order = {name: call.values[name] for name in parts.order_names}
    vectors = {OUT_ROWS if name == ADD_ROWS else name: call.values[name] for name in parts.own if name in PLACED}
    further, placed = further_operands(call.a, call.b), {}
    for name in plan.further:
        placed[name] = named(plan.operand_path).lines(plan, name, further[name], [], True)
        held.append(placed[name][0])
    if not isinstance(plan, Sm90Plan | Sm100Plan):
        own += further_of_tensors(plan, call.values, placed)
        own += [
            *order_words(plan, order, device),
            *rows_of_tensors(plan, vectors, device),
            *rows_memory_words(plan, rows, vectors),
        ]
        own += vectors_of_tensors(plan, call.values, device)
        return (*own, *[0] * (MAX_WORDS - len(own))) if plan.takes_words else ()
    if not plan.takes_extra_params:
        return ()
    names = [*(parts.prologue.names if parts.prologue is not None else ()), *(parts.how.numbers if parts.how else ())]
    given = {
        **order,
        **vectors,
        **{name: call.values[name] for name in SCALES if name in parts.own},
        **{name: call.values[name] for name in names},
        **{name: further[name] for name in plan.further},
    }
    found = words_of_tensors(plan, given, device, placed, rows)
    return (*own, *found[: MAX_WORDS - len(own)])


def _combined(
    a: torch.Tensor, matrices: Sequence[torch.Tensor], how: Combined, numbers: Mapping[str, float],
    kind: torch.dtype, config: Config | None, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """A function of several products alone, on a GPU without wgmma. Raises OperandError for a configuration."""
    lines = a.reshape(-1, a.shape[-1])
    parts = parts_of_text(parts_text(AskedParts(combine=how), len(matrices), (), tuple(numbers)))
    sizes = int(lines.shape[0]), int(matrices[0].shape[1])
    call = ComposedCall([lines], list(matrices), parts, dict(numbers), kind, sizes, sizes[0])
    flat = None if out is None or not out.is_contiguous() else out.view(sizes)
    value = computed(call, config, flat).reshape(*a.shape[:-1], sizes[1])
    return value if out is None else out if flat is not None else out.copy_(value)


def _of_function(product: PrologueProduct, config: Config | None, out: torch.Tensor | None) -> torch.Tensor:
    """A product with a function of A alone, on a GPU without wgmma. Raises OperandError for a configuration."""
    own = {} if product.bias is None else {BIAS: product.bias}
    asked = AskedParts(prologue=product.prologue, activation=product.activation)
    parts = parts_of_text(parts_text(asked, 1, tuple(own), product.prologue.names))
    values = {name: x if x.stride(-1) == 1 else x.contiguous() for name, x in product.given.items()}
    call = ComposedCall(
        [product.a], [product.b], parts, {**values, **own}, product.kind, product.shape, product.shape[-2]
    )
    flat = None if out is None or not out.is_contiguous() else out
    value = computed(call, config, flat)
    return value if out is None or flat is not None else out.copy_(value)


BY_MMA_SYNC.append(_combined)
prologues.BY_MMA_SYNC.append(_of_function)
