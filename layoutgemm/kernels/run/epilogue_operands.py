"""Running plans that read more than A and B, by name.

A main loop's tables, the offsets or counts of groups, further matrices and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import OperandError
from ...schedule import TileList
from ..epilogue.chain import MAX_WORDS
from ..epilogue.parameters import float_word, host_number
from ..operands.prologue import PrologueOperand
from ..orders import clusters_of_plan, given_names, order_values, schedule_of
from ..plan import GemmPlan, present
from ..sm80.plan import Sm80Plan
from ..sm90.indexed.row_copy import copied_bytes
from ..sm90.mainloop import NUMBER_BYTES, lie_together
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from ..verbs import named
from . import ampere
from .arrays import check_arrays, check_numpy_type, check_shape, global_matrix
from .capture import outside_capture
from .cpu import executed, run_on_cpu
from .hardware_model import GlobalMatrix
from .operand_checks import resolved
from .result import GemmResult
from .torch_tensors import check_tensors, chosen_device, launch, require_gpu, run_arrays, torch_type

if TYPE_CHECKING:
    import torch


IndexedPlan = Sm80Plan | Sm90Plan | Sm100Plan
T = TypeVar("T")  # an address, or the array at it


def given_of(plan: Sm90Plan, given: Mapping[str, object]) -> dict[str, Any]:
    """The plan's extra NumPy operands, checked. Raises OperandError for one that does not fit."""
    found: dict[str, Any] = {}
    rest = _tables(plan, given)
    if plan.mainloop is not None:
        found = plan.mainloop.check(rest, _sizes_of_b(plan), plan.joined_rows)
    if plan.groups is not None:
        found[plan.groups.name] = plan.groups.take(given[plan.groups.name], (plan.m, plan.n, plan.k, plan.batch))
    if plan.indexed is not None:
        found |= plan.indexed.take(given, indexed_rows(plan), indexed_matrices(plan))
    found |= _further_values(plan, given)
    if plan.prologue is not None:
        found |= plan.prologue.check(given, (plan.m, plan.n, plan.k, plan.batch), shared_axis(plan))
    if plan.row_sums is not None:
        found["row_sums"] = plan.row_sums.take(given, (plan.m, plan.batch))
    return {**found, **order_values(plan, given)}


def _further_values(plan: IndexedPlan, given: Mapping[str, object]) -> dict[str, object]:
    """The plan's further matrices, as they lie in memory, and its numbers. Raises OperandError for others.

    Of an Sm80Plan a matrix is its lines as bits; else a GlobalMatrix.
    """
    found: dict[str, object] = {}
    for name, (operand, shape) in plan.further.items():
        value, own = given[name], replace(operand, name=name)
        if not isinstance(value, np.ndarray):
            raise OperandError(f"{name} is a {type(value).__qualname__}; give NumPy arrays")
        check_shape(name, value, shape)
        check_numpy_type(own, value)
        by_lines = isinstance(plan, Sm80Plan)
        found[name] = ampere.lines_of_bits(own, value) if by_lines else global_matrix(own, value, [], True)
    return found | {name: np.float32(host_number(name, given[name])) for name in plan.numbers_given}


def _further_lines(plan: IndexedPlan, values: Mapping[str, Any]) -> dict[str, tuple[np.ndarray, int]]:
    """Each further matrix for a launch on arrays: memory, and elements from line to line."""
    if not isinstance(plan, Sm80Plan):
        return {name: (values[name].bits, values[name].leading) for name in plan.further}
    aligned = {"A": plan.config.align[0], "B": plan.config.align[1]}
    found = {}
    for name, (operand, _) in plan.further.items():
        lines, leading = ampere.padded_lines(operand, values[name], aligned[operand.name])
        found[name] = lines, leading
    return found


def _check_further(plan: IndexedPlan, given: Mapping[str, object]) -> None:
    """Raise OperandError for a further matrix, or a number, that is missing."""
    for name in (*plan.further, *plan.numbers_given):
        if given.get(name) is None:
            raise OperandError(f"{name} is missing: the plan reads {', '.join((*plan.further, *plan.numbers_given))}")


def shared_axis(plan: IndexedPlan) -> str:
    """The axis of A along which groups lie one behind the other, "m" or "k"; "" where each has a matrix."""
    if not isinstance(plan, Sm90Plan):
        return ""
    return "m" if plan.joined_rows else "k" if plan.along_k is not None else ""


def _sizes_of_b(plan: Sm90Plan) -> tuple[int, int, int, int]:
    """The sizes of a main loop's tables: M, columns of B, K and batch."""
    return plan.m, plan.n * plan.halves, plan.k, plan.tables_of_batch


def _tables(plan: Sm90Plan, given: Mapping[str, object]) -> dict[str, object]:
    """The main loop's tables among the operands."""
    rest = {name: value for name, value in given.items() if name not in given_names(plan)}
    _check_further(plan, rest)
    rest = {name: value for name, value in rest.items() if name not in (*plan.further, *plan.numbers_given)}
    groups = plan.groups
    if groups is not None and rest.pop(groups.name, None) is None:
        raise OperandError(f"{groups.name} is missing: {groups.missing}, {groups.numbers(plan.batch)} numbers")
    _check_rows_given(plan, rest)
    for name in plan.indexed.names if plan.indexed is not None else ():
        rest.pop(name)
    _check_vectors(plan, rest)
    for operand in _vectors(plan):
        rest.pop(operand.name)
    if plan.row_sums is not None:
        rest.pop("row_sums", None)
    if rest and plan.mainloop is None:
        raise OperandError(f"given = {', '.join(rest)}: the plan reads no such thing")
    return rest


def execute_with_operands(
    plan: Sm90Plan, a: GlobalMatrix, b: GlobalMatrix, given: Mapping[str, object], device: str
) -> np.ndarray:
    """C by the NumPy executor ("reference") or the compiled kernel ("emulator")."""
    values = given_of(plan, given)
    return executed(plan, a, b, device, values, words_of_arrays(plan, values))


def words_of_arrays(plan: Sm90Plan, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The sixteen words of a launch, with arrays in place of their addresses."""
    words: list[Any] = []
    for table in plan.mainloop.tables if plan.mainloop is not None else ():
        value = np.asarray(values[table.name], np.float32)
        groups, k_blocks = value.shape[-2:]
        of_k = np.swapaxes(value, -1, -2)  # the same memory where numbers of neighbouring rows lie next to each other
        along_k = value.flags.c_contiguous or not of_k.flags.c_contiguous or plan.numbers.span > 1
        lying, strides = (value, (k_blocks, 1)) if along_k else (of_k, (1, groups))
        words += [np.ascontiguousarray(lying), *strides, groups * k_blocks if value.ndim > 2 else 0]
    if plan.groups is not None:
        kind = np.int32 if plan.groups.offsets == "i32" else np.int64
        words.append(plan.groups.read(values[plan.groups.name]).astype(kind))
    words += _further_of_arrays(plan, values)
    words += [values[name] for name in plan.order.schedule.words]
    words += _rows_of_arrays(plan, values)
    words += [np.full(copied_bytes(plan), 0xFF, np.uint8)] if plan.copies_rows else []
    words += _vectors_of_arrays(plan, values)
    if plan.row_sums is not None:
        words += [values["row_sums"], plan.m]
    return (*words, *[0] * (MAX_WORDS - len(words)))


def words_of_tensors(
    plan: Sm90Plan, given: Mapping[str, Any], device: torch.device,
    placed: Mapping[str, tuple[torch.Tensor, int]] | None = None, workspace: torch.Tensor | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """The sixteen words of a launch on CUDA tensors; raises OperandError for unsuitable operands.

    placed     the plan's further matrices by name: lines that tensor copies read, and elements from line to line
    workspace  memory of the rows that are copied first, `rows_memory`

    What the offsets or counts are is known on the device alone, and not looked at.
    """
    words: list[int] = []
    rest = _tables(plan, given)
    if plan.mainloop is not None:
        for table, shape in plan.mainloop.expected(rest, _sizes_of_b(plan), plan.joined_rows):
            value = given[table.name]
            _check_tensor(table.name, value, "torch.float32", shape, device, f", {table.said}")
            span = plan.numbers.span
            if span > 1 and not lie_together(value.stride(), value.data_ptr(), span):
                raise OperandError(
                    f"{table.name} has strides {list(value.stride())} and begins at {value.data_ptr():#x}: this main "
                    f"loop reads numbers of {span} K blocks together, neighbours at multiples of "
                    f"{span * NUMBER_BYTES} bytes"
                )
            words += [value.data_ptr(), value.stride(-2), value.stride(-1), value.stride(0) if value.ndim > 2 else 0]
    if plan.groups is not None:
        name, kind = plan.groups.name, "torch.int32" if plan.groups.offsets == "i32" else "torch.int64"
        numbers = given[name]
        _check_tensor(name, numbers, kind, (plan.groups.numbers(plan.batch),), device, "")
        if numbers.stride(0) != 1 and numbers.shape[0] > 1:
            raise OperandError(f"{name} has stride {numbers.stride(0)}: it must be contiguous, stride 1")
        words.append(numbers.data_ptr())
    words += further_of_tensors(plan, given, placed or {})
    words += order_words(plan, given, device)
    words += rows_of_tensors(plan, given, device)
    words += [present(workspace).data_ptr()] if plan.copies_rows else []
    words += vectors_of_tensors(plan, given, device)
    if plan.row_sums is not None:
        sums, shape = given["row_sums"], (plan.batch, plan.m) if plan.batch > 1 else (plan.m,)
        kind = {"f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16"}[plan.row_sums.kind]
        _check_tensor("row_sums", sums, kind, shape, device, ", a sum of each row of a")
        if sums.stride(-1) != 1 and plan.m > 1:
            raise OperandError(f"row_sums has stride {sums.stride(-1)}: it must be contiguous, stride 1")
        words += [sums.data_ptr(), sums.stride(0) if sums.ndim > 1 else 0]
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _further_of_arrays(plan: IndexedPlan, values: Mapping[str, Any]) -> list[object]:
    """The words of further matrices and numbers, with arrays in place of addresses."""
    numbers = {name: float(values[name]) for name in plan.numbers_given}
    return list(_further_words(plan, _further_lines(plan, values), numbers))


def further_of_tensors(
    plan: IndexedPlan, given: Mapping[str, object], placed: Mapping[str, tuple[torch.Tensor, int]]
) -> list[int]:
    """The words of further matrices and numbers on a GPU.

    placed  the plan's further matrices by name: lines as the kernel reads them, and elements from line to line
    """
    places = {name: (placed[name][0].data_ptr(), placed[name][1]) for name in plan.further}
    return list(_further_words(plan, places, {name: host_number(name, given[name]) for name in plan.numbers_given}))


def _further_words(
    plan: IndexedPlan, lines: Mapping[str, tuple[T, int]], numbers: Mapping[str, float]
) -> list[T | int]:  # fmt: skip
    """The words of further matrices, in the order of `plan.words`.

    lines  the plan's further matrices by name: address, and elements from line to line
    """
    known: dict[str, T | int] = {name: float_word(x) for name, x in numbers.items()}
    for name, (address, leading) in lines.items():
        known |= {name: address, f"ld{name}": leading}
    known |= {} if plan.pair is None else {"k2": plan.pair.k}
    return [known[word] for word in plan.operand_words]


def indexed_rows(plan: IndexedPlan) -> int:
    """Row indices of a launch: one for each row of the product, of each matrix of a batch."""
    return plan.m * indexed_matrices(plan)


def indexed_matrices(plan: IndexedPlan) -> int:
    """Matrices of A and of C with row indices of their own: groups of rows lie in one."""
    return 1 if isinstance(plan, Sm90Plan) and plan.joined_rows else plan.batch


def _rows_of_arrays(plan: IndexedPlan, values: Mapping[str, object]) -> list[object]:
    """The words of row indices: each vector, and the rows of its matrix."""
    words: list[object] = []
    for name in plan.indexed.names if plan.indexed is not None else ():
        part, matrix = present(plan.indexed).of(name)
        kind = np.int32 if part.kind == "i32" else np.int64
        words += [
            np.ascontiguousarray(np.asarray(values[name]), kind),
            plan.rows_of_a if matrix == "a" else plan.rows_of_c,
        ]
    return words


def rows_of_tensors(plan: IndexedPlan, given: Mapping[str, Any], device: torch.device) -> list[int]:
    """The words of row indices of CUDA tensors, checked."""
    words: list[int] = []
    for name in plan.indexed.names if plan.indexed is not None else ():
        part, matrix = present(plan.indexed).of(name)
        kind = "torch.int32" if part.kind == "i32" else "torch.int64"
        indices, rows = given[name], indexed_rows(plan)
        _check_tensor(name, indices, kind, (rows,), device, ", a row index for each row of the product")
        if indices.stride(0) != 1 and rows > 1:
            raise OperandError(f"{name} has stride {indices.stride(0)}: it must be contiguous, stride 1")
        words += [indices.data_ptr(), plan.rows_of_a if matrix == "a" else plan.rows_of_c]
    return words


def rows_memory(plan: Sm90Plan, device: torch.device) -> torch.Tensor | None:
    """Memory for the rows that a launch copies first, or None. It lives until the launch has been enqueued."""
    if not plan.copies_rows:
        return None
    import torch

    return torch.empty(copied_bytes(plan), dtype=torch.uint8, device=device)


def order_words(plan: GemmPlan, given: Mapping[str, object], device: torch.device) -> tuple[int, ...]:
    """The words of the plan's order on a GPU; a list that the order makes itself is kept there.

    A caller's list is a CUDA tensor of int32, row + 2**16 * column each, and is not looked at.
    """
    schedule = schedule_of(plan)
    if isinstance(schedule, TileList):
        if schedule.schedule is None:
            tiles: Any = given.get("tiles")
            shape = tuple(getattr(tiles, "shape", ()))
            _check_tensor("tiles", tiles, "torch.int32", shape[:1] or (1,), device, ", row + 2**16 * column each")
        else:
            tiles = kept_list(schedule, clusters_of_plan(plan), device)
        return tiles.data_ptr(), tiles.shape[0]
    values = order_values(plan, given)
    return tuple([values[name] for name in schedule.words])


@cache  # none is dropped: CUDA graphs read them, and do not hold them
def kept_list(schedule: TileList, grid: tuple[int, int], device: torch.device) -> torch.Tensor:
    """The list of a schedule's tiles on a GPU. The first call may be captured in a graph."""
    import torch

    with outside_capture(device):
        return torch.from_numpy(schedule.list_for(grid)).to(device)


def names_read(plan: Sm80Plan | Sm100Plan) -> tuple[str, ...]:
    """The names in `given` that a plan reads beside its epilogue's: further operands, its order's, row indices."""
    rows = () if plan.indexed is None else plan.indexed.names
    return (*plan.further, *plan.numbers_given, *given_names(plan), *rows, *(x.name for x in _vectors(plan)))


def _vectors(plan: IndexedPlan) -> tuple[PrologueOperand, ...]:
    """The vectors of the plan's prologue."""
    prologue = None if isinstance(plan, Sm100Plan) else plan.prologue
    return () if prologue is None else prologue.operands


def _check_vectors(plan: IndexedPlan, given: Mapping[str, object]) -> None:
    """Raise OperandError for a vector of the prologue that is missing."""
    names = [operand.name for operand in _vectors(plan)]
    if missing := [name for name in names if given.get(name) is None]:
        raise OperandError(f"{missing[0]} is missing: the prologue reads {', '.join(names)}")


def _vectors_of_arrays(plan: IndexedPlan, values: Mapping[str, object]) -> list[object]:
    """The words of the prologue's vectors, with arrays in place of addresses."""
    words: list[object] = []
    for operand in _vectors(plan):
        bits = np.ascontiguousarray(operand.dtype.encode(np.asarray(values[operand.name]).astype(np.float32)))
        words += [bits, bits.shape[-1] if bits.ndim > 1 else 0]
    return words


def vectors_of_tensors(plan: IndexedPlan, given: Mapping[str, Any], device: torch.device) -> list[int]:
    """The words of the prologue's vectors on a GPU, checked."""
    words: list[int] = []
    for operand in _vectors(plan):
        value = given[operand.name]
        wanted = operand.shapes((plan.m, plan.n, plan.k, plan.batch), shared_axis(plan))
        want = next((shape for shape in wanted if len(shape) == getattr(value, "ndim", 0)), wanted[0])
        kind = {"f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16"}[operand.dtype.name]
        of = "row" if operand.axis == "m" else "column"
        _check_tensor(operand.name, value, kind, want, device, f", a number for each {of} of a")
        if value.stride(-1) != 1 and value.shape[-1] > 1:
            raise OperandError(f"{operand.name} has stride {value.stride(-1)}: it must be contiguous, stride 1")
        words += [value.data_ptr(), value.stride(0) if value.ndim > 1 else 0]
    return words


def values_read(plan: Sm80Plan | Sm100Plan, given: Mapping[str, object]) -> dict[str, object]:
    """Their values, checked: matrices, numbers, words of the order, and vectors of NumPy. Raises OperandError."""
    _check_names(plan, given)
    _check_further(plan, given)
    values: dict[str, object] = {**_further_values(plan, given), **order_values(plan, given)}
    _check_vectors(plan, given)
    if isinstance(plan, Sm80Plan) and plan.prologue is not None:
        values |= plan.prologue.check(given, (plan.m, plan.n, plan.k, plan.batch))
    if plan.indexed is None:
        return values
    _check_rows_given(plan, given)
    return {**values, **plan.indexed.take(given, indexed_rows(plan), indexed_matrices(plan))}


def _check_names(plan: Sm80Plan | Sm100Plan, given: Mapping[str, object]) -> None:
    """Raise OperandError for operands that the plan does not read."""
    names = names_read(plan)
    if extra := [name for name in given if name not in names]:
        who = "order" if names and names == given_names(plan) else "plan"
        raise OperandError(f"given = {', '.join(extra)}: the {who} reads {', '.join(names) or 'no parameter'}")


def words_read(plan: Sm80Plan | Sm100Plan, values: Mapping[str, object]) -> tuple[Any, ...]:
    """The words of a launch without an epilogue's, sixteen, with arrays in place of addresses."""
    words = _further_of_arrays(plan, values)
    words += [values[name] for name in schedule_of(plan).words]
    words += _rows_of_arrays(plan, values)
    words += _vectors_of_arrays(plan, values)
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _check_rows_given(plan: IndexedPlan, given: Mapping[str, object]) -> None:
    """Raise OperandError for a vector of row indices that is missing."""
    for name in plan.indexed.names if plan.indexed is not None else ():
        if given.get(name) is None:
            raise OperandError(f"{name} is missing: {present(plan.indexed).missing}, {indexed_rows(plan)} numbers")


def run_by_name(
    plan: Sm80Plan | Sm100Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor,
    given: Mapping[str, object], out: np.ndarray | torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """C of several B, two pairs, an order that reads words, or indexed rows: `given` has operands by name.

    Raises OperandError for others, for one that is missing or out of range, and for tensors on the CPU.
    """
    if not isinstance(a, np.ndarray):
        return _by_name_on_tensors(plan, a, b, given, out, device, copy)
    values = values_read(plan, given)
    check_arrays(plan, a, b, out)
    words = words_read(plan, values)
    chosen, why = chosen_device(plan, device)
    if chosen == "cuda":
        return run_arrays(plan, a, b, why, words).into(out)
    if isinstance(plan, Sm80Plan):
        return ampere.run_on_cpu(plan, a, b, chosen, why, copy, words, values).into(out)
    return run_on_cpu(plan, a, b, chosen, why, copy, partial(executed, values=values, words=words)).into(out)


def _by_name_on_tensors(
    plan: Sm80Plan | Sm100Plan, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, object],
    out: torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """The same on CUDA tensors; a caller's list, and vectors of row indices, are tensors too."""
    if not a.is_cuda or device not in (None, "cuda"):
        raise OperandError(
            f"a is on {a.device}: a plan that reads more than a and b takes CUDA tensors, or NumPy arrays"
        )
    _check_names(plan, given)
    _check_further(plan, given)
    check_tensors(plan, a, b, out, {name: given[name] for name in plan.further})
    require_gpu(plan, a.device.index)
    _check_rows_given(plan, given)
    _check_vectors(plan, given)
    further = {name: _placed_tensor(plan, name, given[name]) for name in plan.further}
    own = (
        *further_of_tensors(plan, given, further), *order_words(plan, given, a.device),
        *rows_of_tensors(plan, given, a.device), *vectors_of_tensors(plan, given, a.device),
    )  # fmt: skip
    words = (*own, *[0] * (MAX_WORDS - len(own)))
    return launch(plan, resolved(a.detach()), resolved(b.detach()), out, "", copy, words)


def _placed_tensor(plan: Sm80Plan | Sm100Plan, name: str, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(lines, leading) of a further matrix, read in place. Raises OperandError for one that does not fit."""
    operand, shape = plan.further[name]
    if str(getattr(x, "dtype", type(x).__name__)) != str(torch_type(operand.dtype)) or tuple(x.shape) != shape:
        of = f"{getattr(x, 'dtype', type(x).__name__)} of shape {tuple(getattr(x, 'shape', ()))}"
        raise OperandError(f"{name} is {of}: it takes {torch_type(operand.dtype)} of {shape}")
    try:
        lines, leading, _ = named(plan.operand_path).lines(plan, operand.name, resolved(x.detach()), [], False)
    except OperandError as error:
        raise OperandError(f"{name}{str(error).removeprefix(operand.name.lower())}") from error
    return lines, leading


def _check_tensor(name: str, value: Any, kind: str, shape: tuple[int, ...], device: torch.device, of: str) -> None:
    if getattr(value, "device", None) != device or str(value.dtype) != kind:
        said = f"{getattr(value, 'dtype', type(value).__name__)} on {getattr(value, 'device', 'no device')}"
        raise OperandError(f"{name} is {said}: it takes {kind} on {device}")
    if tuple(value.shape) != shape:
        raise OperandError(f"{name} has shape {tuple(value.shape)}: it takes {shape}{of}")
