"""Calls of matmul with several parts. A kept launch, or all checks, then a kernel or torch's dispatcher.

Compilers, torch.func, modes, fake tensors and subclasses see the operator `composed_matmul`: one node of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from ...dtypes import f32
from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue, refusal_of_type
from ...kernels.epilogue.parameters import host_number
from ...kernels.epilogue.steps import EpilogueOperand
from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.operands.combined import Combine, refusal_of_matrices, refusal_of_pairs
from ...kernels.operands.prologue import Prologue
from ...kernels.orders import Order
from ...kernels.run.operand_checks import same_memory
from ...kernels.sm90.triangular.operands import Triangles
from ...layouts import Layout
from ...memo import function_key
from ...schedule import Schedule
from ...schedule.functions import OPS_AT
from ..checks import (
    NOT_RECORDED,
    autocast,
    check_written,
    copied,
    derived_by_transform,
    differentiated,
    has_tangent,
    refuse_traces,
    seen_and_recorded,
)
from ..compiled import kept_launches
from ..compiled.function_tape import Constants, followed, parameters_of
from ..compiled.kept_launches import Extras, again_or
from ..compiled.traced import check_kinds, check_number, named, refusal, refuse, refuse_finish, traced_flag
from ..epilogue import Tensors
from ..operands.api import followed_sums
from ..operands.several import NO_DICT
from ..prepared import Config, choice_of, config_text
from ..prologue.rows import of_chosen_rows
from .checks import checked, further_operands, in_order, named_operands, refusal_of_numbers
from .derivatives import derivable, dispatched, recorded, visited_part
from .operators import CHECK_COMPOSED, names_of_text, numbers_left, text_of_parts
from .parts import ADD_ROWS, OWN, TILES, AskedParts, check_copy_rows, parts_of_text, parts_text
from .product import computed, stored

Operands: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]]


class ComposedOptions(NamedTuple):
    """Arguments of `matmul` for the result."""

    out: torch.Tensor | None
    config: Config | None
    out_dtype: torch.dtype | None
    allow_tf32: bool | None


def composed_product(
    a: Operands, b: Operands, asked: AskedParts, own: Mapping[str, torch.Tensor | None],
    given: Mapping[str, object] | None, options: ComposedOptions, through: tuple[str, ...] = (),
) -> torch.Tensor:  # fmt: skip
    """The product with its parts: see `torch_op.matmul`.

    own      bias and vectors of rows, by the names of `parts.OWN`; None for those that are not given
    given    what the parts read and write, by name
    through  names of both that have a number for each row of a, of which `rows` chooses the product's

    Raises OperandError, PlanError, or TensorError in torch's words, naming the operand or the part.

    >>> x, row = torch.eye(2).bfloat16(), torch.ones(2, 1).bfloat16()
    >>> nothing = ComposedOptions(None, None, None, None)
    >>> composed_product((x, row), (x, row.mT), AskedParts(activation="relu"), {}, None, nothing).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    there: dict[str, torch.Tensor] = {}
    for name in OWN:  # no comprehension: Dynamo of Python 3.11 reads no name that is bound in one
        if (x := own.get(name)) is not None:
            there[name] = x
    refuse_or_raise(refusal_of_kinds(asked, given))
    values: Tensors = dict(given or {})
    if asked.prologue is not None and ROWS in there:
        values, through, rows = in_order(values, through, there[ROWS]), (), there.pop(ROWS)
        a, asked, values = with_rows_chosen(a, asked, rows, values)
    left, right = operands_of(a, b, asked.combine is not None)
    if torch.compiler.is_dynamo_compiling():
        return _traced(left, right, asked, {**there, **values}, tuple(there), options)
    out, config, out_dtype, allow_tf32 = options

    def make() -> torch.Tensor:
        refuse_traces(said_of(asked, len(left)))
        choice_of(config)
        text = parts_text(asked, len(right) // len(left), tuple(there), tuple(values))
        parts, every = parts_of_text(text), {**there, **values}
        if out is not None and any(same_memory(every[name], out) for name in parts.read):
            kept = out.clone(memory_format=torch.preserve_format)  # an operand in place: as for one product
            value = composed_product(a, b, asked, there, values, options._replace(out=kept), through)
            return copied(value, out)
        for name in parts.numbers:
            every[name] = host_number(name, every[name])
        if TILES in parts.read and left[0].device.type == "cpu":
            every[TILES] = tiles_of_host(every[TILES])
        call = checked(left, right, parts, every, out, out_dtype, allow_tf32, through)
        tensors = call.tensors
        check_written({name: every[name] for name in parts.written})
        sees, records = seen_and_recorded(tensors, out)
        if not (sees or records):
            with torch.no_grad():
                return computed(call, config, out)
        call = call.gathered
        if sees:
            derives = derived_by_transform() or any(has_tangent(x) for x in tensors)
            shown = derivable if derives else dispatched
            if out is None:
                return shown(call, config)
            vectors = rows_in_order(there, left)
            text = parts_text(asked, len(right) // len(left), tuple(vectors), tuple(values))
            whole = checked(left, right, parts_of_text(text), {**call.values, **vectors}, None, out_dtype, allow_tf32)
            inside = visited_part(torch.ones_like(out), whole, config) != 0 if asked.order is not None else None
            return stored(shown(whole, config), inside, there, out)
        return recorded(call, config)

    return _again(make, left, right, asked, there, values, options, through)


def with_rows_chosen(
    a: Operands, asked: AskedParts, rows: torch.Tensor, values: Tensors
) -> tuple[Operands, AskedParts, Tensors]:
    """A product with a prologue in terms of the first A's chosen rows. Returns operands, parts and vectors.

    Raises as `of_chosen_rows`.
    """
    assert isinstance(asked.prologue, Prologue)
    first = a if isinstance(a, torch.Tensor) else a[0]
    first, values = of_chosen_rows(first, rows, asked.prologue, values, asked.copy_rows)
    return first if isinstance(a, torch.Tensor) else (first, *a[1:]), asked._replace(copy_rows=None), values


def tiles_of_host(tiles: object) -> object:
    """A list of tiles in NumPy's integers as a tensor; anything else as it is."""
    if isinstance(tiles, torch.Tensor):
        return tiles
    found = np.asarray(tiles)
    return torch.from_numpy(found.astype(np.int64)) if found.dtype.kind in "iu" else tiles


def operands_of(a: Operands, b: Operands, combines: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The matrices of a, and those that the first multiplies before those of the second.

    combines  whether there is a function of several sums: then two a have a tuple of b each

    Raises OperandError for anything but tensors and tuples of them.
    """
    left = as_several("a", a)
    if not combines:
        right = as_several("b", b)
        refuse_or_raise(refusal_of_numbers(left, right))
        return left, right
    refuse_or_raise(refusal_of_matrices(b) if len(left) == 1 else refusal_of_pairs(b, len(left)))
    if len(left) == 1:
        return left, as_several("b", b)
    return left, [*as_several("b[0]", b[0]), *as_several("b[1]", b[1])]


def as_several(name: str, x: Operands) -> list[torch.Tensor]:
    """An operand as a list of matrices. Raises OperandError for anything but a tensor or a tuple of them."""
    if not isinstance(x, (torch.Tensor, tuple, list)):
        refuse_or_raise(f"{name} is a {type(x).__qualname__}: a tensor, or a tuple of them")
    return [x] if isinstance(x, torch.Tensor) else list(x)


def _again(
    make: Callable[[], torch.Tensor], a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], asked: AskedParts,
    own: Mapping[str, torch.Tensor | None], given: Tensors, options: ComposedOptions, through: tuple[str, ...],
) -> torch.Tensor:  # fmt: skip
    """The kept launch of such a call, or what `make` computes."""
    out, config, out_dtype, _ = options
    check_copy_rows(asked.copy_rows, tuple(own))  # a key takes 1 for True
    if a and isinstance(a[0], torch.Tensor) and a[0].get_device() < kept_launches.FIRST_GPU:
        return make()  # of tensors of the CPU nothing is launched
    epilogue = asked.epilogue if isinstance(asked.epilogue, Epilogue) else None
    if not a or getattr(a[0], "dtype", None) is torch.float32:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    read = {"a": a[0], "b": b[0], **further_operands(a, b)}
    written = dict.fromkeys(() if epilogue is None else epilogue.writes)
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor) and name not in written}
    numbers = {name: x for name, x in given.items() if not isinstance(x, torch.Tensor)}
    mine = {} if epilogue is None else {operand.name: operand for operand in epilogue.numbers}
    combined = () if asked.combine is None else tuple(name for name in numbers if name not in mine)
    fixed = tuple([(name, x) for name, x in numbers.items() if name not in mine and name not in combined])
    if any(type(x) is not int for _, x in fixed) or not all(name in given for name in written):
        return make()  # a list on the host is the caller's own
    if any(not name.isidentifier() for name in combined):
        return make()
    operands = [mine[name] if name in mine else EpilogueOperand(name, "", f32, host=True) for name in numbers
                if name in mine or name in combined]  # fmt: skip
    extras = Extras(
        {name: given[name] for name in written}, tuple(operands), given, epilogue is None or epilogue.stores_c
    )
    functions = function_key(asked.order, asked.combine)
    key = ("matmul, composed", asked, functions, tuple(own), fixed, combined, config, out_dtype, through)
    return again_or(make, key, {**read, **own, **tensors}, out, extras)


def said_of(asked: AskedParts, matrices_of_a: int) -> str:
    """The argument that asks for a composed product, in a refusal."""
    for name in ("order", "prologue", "combine", "epilogue", "triangles"):
        if getattr(asked, name) is not None:
            return f"{name}="
    return "a product of two pairs" if matrices_of_a > 1 else "rows="


def refusal_of_kinds(asked: AskedParts, given: object) -> str:
    """Why a part is of another class, or the operands are in no dict. Or ""."""
    if asked.prologue is not None and not isinstance(asked.prologue, Prologue):
        return f"prologue is a {type(asked.prologue).__qualname__}: a Prologue, made by Prologue.of"
    if asked.epilogue is not None and not isinstance(asked.epilogue, Epilogue):
        return refusal_of_type(asked.epilogue)
    if asked.triangles is not None and not isinstance(asked.triangles, Triangles):
        return f"triangles is a {type(asked.triangles).__qualname__}: a Triangles, as in Triangles(a='lower')"
    if given is not None and not isinstance(given, Mapping):
        what = "the order's parameters by name" if asked.order is not None else "the parts' operands by name"
        return NO_DICT.partition(";")[0].format(type(given).__qualname__) + f"; it is a dict, {what}"
    return ""


def refuse_or_raise(text: str) -> None:
    """Raise OperandError with a text that is not empty, so that a compiler keeps it."""
    if text and torch.compiler.is_dynamo_compiling():
        refuse(text)
    if text:
        raise OperandError(text)


def rows_in_order(own: Mapping[str, torch.Tensor], a: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The vectors of the same product with its rows in order. `out` takes them by `out_rows` afterwards."""
    if not {OUT_ROWS, ADD_ROWS} & set(own):
        return dict(own)
    found = {name: x for name, x in own.items() if name not in (OUT_ROWS, ADD_ROWS)}
    found.setdefault(ROWS, torch.arange(a[0].shape[0], device=a[0].device))
    return {name: found[name] for name in OWN if name in found}


def _traced(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], asked: AskedParts, values: Tensors,
    own: tuple[str, ...], options: ComposedOptions,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    out, config, out_dtype, allow_tf32 = options
    given = tuple([name for name in values if name not in own])
    sums = len(b) // len(a)
    parts = _constants(asked, sums, given)
    text = text_of_parts(sums, own, given, *parts)
    if not text:
        refuse(refusal("parts", sums, own, given, *parts))
    reads, writes, numbers, wholes = names_of_text(text)
    named_tensors = {**named_operands(a, b), **{name: values[name] for name in reads}}
    check_kinds(named_tensors, {**{name: values[name] for name in writes}, **named(out=out)})
    for name in (*numbers, *wholes):
        check_number(name, values[name], name in wholes)
    refuse(refusal("config", config))
    refuse_finish(asked.activation, a[0], out_dtype)
    tensors = [*a, *b, *[values[name] for name in (*reads, *writes)]]
    if differentiated(*tensors, out):
        refuse(NOT_RECORDED if out is not None else "")
        multiplied = a[0].dtype if differentiated(*a, *b) else torch.float32
        refuse(refusal("derivative", parts[3] or "", multiplied, out_dtype))
    left = [autocast(x, b[i * sums])[0] for i, x in enumerate(a)]
    right = [autocast(a[0], x)[1] for x in b]
    allowed = traced_flag(allow_tf32)
    lists = _lists(values, reads, writes, numbers, wholes)
    CHECK_COMPOSED(left, right, *lists, text, out, out_dtype, allowed)
    vectors_of_rows: dict[str, torch.Tensor] = {}
    for name in (OUT_ROWS, ADD_ROWS):
        if name in own:
            vectors_of_rows[name] = values[name]  # type: ignore[assignment]
    if out is not None and (OUT_ROWS in own or ADD_ROWS in own):
        vectors = rows_in_order({name: values[name] for name in own}, left)
        own = tuple(vectors)
        values = {**values, **vectors}
        copies = None if ROWS not in own else asked.copy_rows
        text = text_of_parts(sums, own, given, *parts[:5], copies, *parts[6:])
        lists = _lists(values, *names_of_text(text))
    read, written, floats, ints = lists
    if written:
        value: torch.Tensor = torch.ops.layoutgemm.composed_matmul_writing(
            left, right, read, written, floats, ints, text, out_dtype, config_text(config), allowed
        )
    else:
        value = torch.ops.layoutgemm.composed_matmul(
            left, right, read, floats, ints, text, out_dtype, config_text(config), allowed
        )
    if out is None:
        return value
    inside = None
    if asked.order is not None:
        inside = torch.ops.layoutgemm.visited_part(
            torch.ones_like(value, dtype=torch.bool), left, right, read, floats, ints, text, value.dtype,
            config_text(config),
        )  # fmt: skip
    return stored(value, inside, vectors_of_rows, out)


def _constants(asked: AskedParts, sums: int, given: tuple[str, ...]) -> tuple[object, ...]:
    """The parts as the compiler takes them: texts, and tapes of functions. `given` names what they read."""
    prologue = None if asked.prologue is None else asked.prologue.json  # type: ignore[union-attr]
    epilogue = None if asked.epilogue is None else asked.epilogue.json  # type: ignore[union-attr]
    triangles = None if asked.triangles is None else (asked.triangles.a, asked.triangles.b)  # type: ignore[union-attr]
    order = followed_order(asked.order)
    combine: Combine | Constants | None = asked.combine
    if asked.combine is not None:
        combine = followed_sums(asked.combine, sums, numbers_left(order, prologue, epilogue, given))
    return order, prologue, combine, epilogue, asked.activation, asked.copy_rows, triangles, asked.promotes


def followed_order(order: Order | None) -> Order | Constants | None:
    """An order's function as the compiler follows it; another order as it is."""
    if order is None or isinstance(order, (Schedule, Layout, str)) or not callable(order):
        return order
    return followed(order, parameters_of(order), OPS_AT, "order")


def _lists(
    values: Tensors, reads: Sequence[str], writes: Sequence[str], numbers: Sequence[str],
    wholes: Sequence[str],
) -> tuple[Sequence[object], ...]:  # fmt: skip
    """The operator's four lists, under the compiler."""
    tensors = [values[name] for name in reads], [values[name] for name in writes]
    return *tensors, [float(values[name]) for name in numbers], [values[name] for name in wholes]
