"""Running plans that read more than A and B, by name.

A main loop's tables, the offsets or counts of groups, further matrices and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ...errors import OperandError
from ...schedule import TileList
from ..epilogue.chain import MAX_WORDS
from ..epilogue.parameters import float_word, host_number
from ..indexed.added_rows import added_bytes, list_bytes, sorts_rows
from ..indexed.rows import OUT_ROWS
from ..operands.block_scales import NAMES, BlockedFactors
from ..operands.product import distance_of
from ..operands.prologue import PrologueOperand
from ..operands.promoted import NUMBER_BYTES, lie_together
from ..orders import clusters_of_plan, given_names, order_values, schedule_of
from ..plan import GemmPlan, present
from ..sm80.plan import Sm80Plan
from ..sm90.indexed.row_copy import copied_bytes
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from ..verbs import named
from . import ampere
from .arrays import check_arrays, check_numpy_type, check_shape, global_matrix, pitch_of_map
from .capture import outside_capture
from .cpu import executed
from .hardware_model import GlobalMatrix
from .operand_checks import resolved
from .result import GemmResult
from .torch_tensors import TORCH_NAMES, check_tensors, chosen_device, launch, require_gpu, run_on_device, torch_type

if TYPE_CHECKING:
    import torch


NamedPlan = Sm80Plan | Sm90Plan | Sm100Plan
Lines: TypeAlias = "tuple[torch.Tensor, int, int]"  # as the kernel reads them; from line to line, matrix to matrix
Given = Mapping[str, Any]  # operands by name: arrays, tensors, numbers
T = TypeVar("T")  # an address, or the array at it


def names_read(plan: NamedPlan) -> tuple[str, ...]:
    """Names of the operands beside an epilogue's, in the order of the launch's words."""
    tables = [table.name for table in plan.mainloop.tables] if plan.mainloop is not None else []
    groups = [] if plan.groups is None else [plan.groups.name]
    rows = () if plan.indexed is None else plan.indexed.names
    vectors = [operand.name for operand in _vectors(plan)]
    sums = ["row_sums"] if plan.row_sums is not None else []
    scales = NAMES if _block_scales(plan) is not None else ()
    own = *tables, *groups, *plan.further, *plan.numbers_given, *given_names(plan), *rows, *vectors, *sums
    return (*own, *scales)


def _block_scales(plan: NamedPlan) -> BlockedFactors | None:
    """The plan's block scales, or None."""
    return None if isinstance(plan, Sm90Plan) else plan.scales


def check_names(plan: NamedPlan, given: Mapping[str, object]) -> None:
    """Raise OperandError for a name that the plan does not read, and for one missing.

    A main loop checks its own tables, and names those it reads.
    """
    names = names_read(plan)
    if plan.mainloop is None and (extra := [name for name in given if name not in names]):
        who = "order" if names and names == given_names(plan) else "plan"
        raise OperandError(f"given = {', '.join(extra)}: the {who} reads {', '.join(names) or 'no parameter'}")
    further, vectors = (*plan.further, *plan.numbers_given), [operand.name for operand in _vectors(plan)]
    said = {name: f"the plan reads {', '.join(further)}" for name in further}
    if (groups := plan.groups) is not None:
        said[groups.name] = f"{groups.missing}, {groups.numbers(plan.batch)} numbers"
    for name in plan.indexed.names if plan.indexed is not None else ():
        said[name] = f"{present(plan.indexed).missing}, {indexed_rows(plan)} numbers"
    said |= {name: f"the prologue reads {', '.join(vectors)}" for name in vectors}
    if (scales := _block_scales(plan)) is not None:
        said |= dict.fromkeys(NAMES, f"the plan reads {scales.format.name} scales of A and B")
    for name, why in said.items():
        if given.get(name) is None:
            raise OperandError(f"{name} is missing: {why}")


def _tables(plan: NamedPlan, given: Mapping[str, object]) -> dict[str, object]:
    """The operands that a main loop's tables have to be."""
    tables = [table.name for table in present(plan.mainloop).tables]
    others = [name for name in names_read(plan) if name not in tables]
    return {name: value for name, value in given.items() if name not in others}


def values_read(plan: NamedPlan, given: Mapping[str, object]) -> dict[str, Any]:
    """The NumPy operands that a plan reads by name, checked. Raises OperandError for one that does not fit."""
    check_names(plan, given)
    sizes, found = (plan.m, plan.n, plan.k, plan.batch), dict[str, Any]()
    if plan.mainloop is not None:
        found |= plan.mainloop.check(_tables(plan, given), _sizes_of_b(plan), plan.joined_rows)
    if (groups := plan.groups) is not None:
        found[groups.name] = groups.take(given[groups.name], sizes)
    if plan.row_sums is not None:
        found["row_sums"] = plan.row_sums.take(given, (plan.m, plan.batch))
    found |= _further_values(plan, given) | order_values(plan, given)
    if plan.prologue is not None:
        found |= plan.prologue.check(given, sizes, shared_axis(plan))
    if (scales := _block_scales(plan)) is not None:
        found |= scales.take(given, sizes, None if plan.groups is None else found[plan.groups.name])
    if plan.indexed is not None:
        found |= plan.indexed.take(given, indexed_rows(plan), indexed_matrices(plan))
    return found


def _further_values(plan: NamedPlan, given: Mapping[str, object]) -> dict[str, object]:
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


def _further_lines(plan: NamedPlan, values: Given) -> dict[str, tuple[np.ndarray, int, int]]:
    """Each further matrix for a launch on arrays: memory, elements from line to line, from matrix to matrix."""
    if not isinstance(plan, Sm80Plan):
        return {
            name: (values[name].bits, pitch_of_map(operand, values[name]), values[name].pitch)
            for name, (operand, _) in plan.further.items()
        }
    aligned = {"A": plan.config.align[0], "B": plan.config.align[1]}
    found = {}
    for name, (operand, _) in plan.further.items():
        lines, leading = ampere.padded_lines(operand, values[name], aligned[operand.name])
        found[name] = lines, leading, lines[0].size
    return found


def through(plan: NamedPlan) -> tuple[str, ...]:
    """Names of what is read through the row indices of A."""
    return () if plan.indexed is None else plan.indexed.through


def shared_axis(plan: NamedPlan) -> str:
    """The axis of A along which groups lie one behind the other, "m" or "k". It is "" where each has a matrix."""
    return "m" if plan.joined_rows else "k" if plan.along_k is not None else ""


def _sizes_of_b(plan: NamedPlan) -> tuple[int, int, int, int]:
    """The sizes of a main loop's tables: M, columns of B, K and batch. M is A's rows where indices choose a table's."""
    chosen = plan.mainloop is not None and any(table.name in through(plan) for table in plan.mainloop.tables)
    return plan.rows_of_a if chosen else plan.m, plan.n * plan.halves, plan.k, plan.tables_of_batch


def words_read(plan: NamedPlan, values: Given) -> tuple[Any, ...]:
    """The sixteen words of a launch without an epilogue's, with arrays in place of addresses.

    values  as `values_read` gives them
    """
    words = _tables_of_arrays(plan, values)
    if (groups := plan.groups) is not None:
        kind = np.int32 if groups.offsets == "i32" else np.int64
        words.append(groups.read(values[groups.name]).astype(kind))
    words += _further_of_arrays(plan, values)
    words += [values[name] for name in schedule_of(plan).words]
    words += _rows_of_arrays(plan, values)
    memory = [np.full(size, 0xFF, np.uint8) for size in _row_bytes(plan) if size]
    if added_bytes(plan):
        write_sorted(plan, memory[-1], words[-2])  # the last vector is that of C's rows
    words += memory
    words += _vectors_of_arrays(plan, values)
    words += [values[name] for name in NAMES if _block_scales(plan) is not None]
    if plan.row_sums is not None:
        words += [values["row_sums"], plan.m]
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _tables_of_arrays(plan: NamedPlan, values: Given) -> list[Any]:
    """The words of the main loop's tables: each one, its strides, and elements from matrix to matrix."""
    words: list[Any] = []
    for table in plan.mainloop.tables if plan.mainloop is not None else ():
        value = np.asarray(values[table.name], np.float32)
        groups, k_blocks = value.shape[-2:]
        of_k = np.swapaxes(value, -1, -2)  # the same memory where numbers of neighbouring rows lie next to each other
        along_k = value.flags.c_contiguous or not of_k.flags.c_contiguous or present(plan.mainloop).span > 1
        lying, strides = (value, (k_blocks, 1)) if along_k else (of_k, (1, groups))
        words += [np.ascontiguousarray(lying), *strides, groups * k_blocks if value.ndim > 2 else 0]
    return words


def words_of_tensors(
    plan: NamedPlan, given: Given, device: torch.device,
    placed: Mapping[str, Lines] | None = None, workspace: torch.Tensor | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """The sixteen words of a launch on CUDA tensors; raises OperandError for unsuitable operands.

    placed     the plan's further matrices by name, as `further_of_tensors` takes them
    workspace  memory of the rows that are copied first or added afterwards, `rows_memory`

    What the offsets or counts are is known on the device alone, and not looked at.
    """
    check_names(plan, given)
    words = _groups_of_tensors(plan, given, device)
    words += further_of_tensors(plan, given, placed or {})
    words += order_words(plan, given, device)
    words += rows_of_tensors(plan, given, device)
    words += rows_memory_words(plan, workspace, given)
    words += vectors_of_tensors(plan, given, device)
    if (scales := _block_scales(plan)) is not None:
        for operand, (name, rows) in enumerate(zip(NAMES, (plan.m, plan.n), strict=True)):
            blocked = scales.blocked_bytes(operand, rows, plan.k, plan.batch)
            _check_tensor(name, given[name], scales.format.scale.name, (blocked,), device, ", blocked factors")
            words.append(given[name].data_ptr())
    if plan.row_sums is not None:
        shape = (plan.batch, plan.m) if plan.batch > 1 else (plan.m,)
        _check_tensor("row_sums", given.get("row_sums"), plan.row_sums.kind, shape, device, ", a sum of each row of a")
        sums = given["row_sums"]
        words += [sums.data_ptr(), sums.stride(0) if sums.ndim > 1 else 0]
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _groups_of_tensors(plan: NamedPlan, given: Given, device: torch.device) -> list[int]:
    """The words of a main loop's tables and of groups' numbers, of CUDA tensors."""
    words: list[int] = []
    if plan.mainloop is not None:
        for table, shape in plan.mainloop.expected(_tables(plan, given), _sizes_of_b(plan), plan.joined_rows):
            value = given[table.name]
            _check_tensor(table.name, value, "f32", shape, device, f", {table.said}", contiguous=False)
            span = plan.mainloop.span
            if span > 1 and not lie_together(value.stride(), value.data_ptr(), span):
                raise OperandError(
                    f"{table.name} has strides {list(value.stride())} and begins at {value.data_ptr():#x}: this main "
                    f"loop reads numbers of {span} K blocks together, neighbours at multiples of "
                    f"{span * NUMBER_BYTES} bytes"
                )
            words += [value.data_ptr(), value.stride(-2), value.stride(-1), value.stride(0) if value.ndim > 2 else 0]
    if plan.groups is not None:
        numbers = given[plan.groups.name]
        _check_tensor(plan.groups.name, numbers, plan.groups.offsets, (plan.groups.numbers(plan.batch),), device, "")
        words.append(numbers.data_ptr())
    return words


def _further_of_arrays(plan: NamedPlan, values: Given) -> list[object]:
    """The words of further matrices and numbers, with arrays in place of addresses."""
    numbers = {name: float(values[name]) for name in plan.numbers_given}
    return list(_further_words(plan, _further_lines(plan, values), numbers))


def further_of_tensors(plan: NamedPlan, given: Mapping[str, object], placed: Mapping[str, Lines]) -> list[int]:
    """The words of further matrices and numbers on a GPU.

    placed  the plan's further matrices by name: lines as the kernel reads them, elements from line to line, and from
            matrix to matrix
    """
    places = {name: (placed[name][0].data_ptr(), *placed[name][1:]) for name in plan.further}
    return list(_further_words(plan, places, {name: host_number(name, given[name]) for name in plan.numbers_given}))


def _further_words(
    plan: NamedPlan, lines: Mapping[str, tuple[T, int, int]], numbers: Mapping[str, float]
) -> list[T | int]:  # fmt: skip
    """The words of further matrices, in the order of `plan.words`.

    lines  the plan's further matrices by name: address, elements from line to line, and from matrix to matrix
    """
    known: dict[str, T | int] = {name: float_word(x) for name, x in numbers.items()}
    for name, (address, leading, distance) in lines.items():
        known |= {name: address, f"ld{name}": leading, distance_of(name): distance}
    known |= {} if plan.pair is None else {"k2": plan.pair.k}
    return [known[word] for word in plan.operand_words]


def indexed_rows(plan: NamedPlan) -> int:
    """Row indices of a launch. There is one for each row of the product, of each matrix of a batch."""
    return plan.m * indexed_matrices(plan)


def indexed_matrices(plan: NamedPlan) -> int:
    """Matrices of A and of C with row indices of their own. Groups of rows lie in one."""
    return 1 if plan.joined_rows else plan.batch


def _rows_of_arrays(plan: NamedPlan, values: Mapping[str, object]) -> list[object]:
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


def rows_of_tensors(plan: NamedPlan, given: Given, device: torch.device) -> list[int]:
    """The words of row indices of CUDA tensors, checked."""
    words: list[int] = []
    for name in plan.indexed.names if plan.indexed is not None else ():
        part, matrix = present(plan.indexed).of(name)
        indices, rows = given[name], indexed_rows(plan)
        _check_tensor(name, indices, part.kind, (rows,), device, ", a row index for each row of the product")
        words += [indices.data_ptr(), plan.rows_of_a if matrix == "a" else plan.rows_of_c]
    return words


def _row_bytes(plan: NamedPlan) -> tuple[int, int]:
    """Bytes of the rows that a launch copies first, and adds afterwards."""
    return copied_bytes(plan) if isinstance(plan, Sm90Plan) else 0, added_bytes(plan)


def rows_memory(plan: NamedPlan, device: torch.device) -> torch.Tensor | None:
    """Memory for the rows that a launch copies first, and adds afterwards; None without any.

    It lives until the launch has been enqueued.
    """
    if not any(_row_bytes(plan)):
        return None
    import torch

    return torch.empty(sum(_row_bytes(plan)), dtype=torch.uint8, device=device)


def write_sorted(
    plan: NamedPlan, memory: np.ndarray | torch.Tensor, rows: np.ndarray | torch.Tensor
) -> None:  # fmt: skip
    """Write the sorted row indices of C to the workspace, where the launch reads them. See `indexed.added_rows`.

    memory  the workspace's bytes
    rows    the row indices, on the memory's device, on whose stream they are sorted
    """
    if not sorts_rows(plan):
        return
    shape = plan.matrices_of_c, plan.m
    _, order, names = list_bytes(plan, (*shape, plan.n))
    rows, places, behind = rows.reshape(shape), memory[order:names], memory[names : added_bytes(plan)]
    if isinstance(rows, np.ndarray):
        found = np.argsort(rows, kind="stable")
        places.view(np.int64).reshape(shape)[:] = found
        behind.view(rows.dtype).reshape(shape)[:] = np.take_along_axis(rows, found, -1)
        return
    import torch

    torch.sort(rows, stable=True, out=(behind.view(rows.dtype).view(shape), places.view(torch.int64).view(shape)))


def rows_memory_words(plan: NamedPlan, memory: torch.Tensor | None, given: Given) -> list[int]:
    """The words of the memory of `rows_memory`. Copied rows fill whole lines, so others begin at one.

    The row indices are sorted into it where the launch reads them sorted.
    """
    first, second = _row_bytes(plan)
    at = 0 if memory is None else int(memory.data_ptr())
    if memory is not None and second:
        write_sorted(plan, memory[first:], given[OUT_ROWS])
    return [at] * bool(first) + [at + first] * bool(second)


def order_words(plan: GemmPlan, given: Mapping[str, object], device: torch.device) -> tuple[int, ...]:
    """The words of the plan's order on a GPU. A list that the order makes itself is kept there.

    A caller's list is a CUDA tensor of int32, row + 2**16 * column each, and is not looked at.
    """
    schedule = schedule_of(plan)
    if isinstance(schedule, TileList):
        if schedule.schedule is None:
            tiles: Any = given.get("tiles")
            shape = tuple(getattr(tiles, "shape", ()))
            _check_tensor("tiles", tiles, "i32", shape[:1] or (1,), device, ", row + 2**16 * column each")
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


def _vectors(plan: NamedPlan) -> tuple[PrologueOperand, ...]:
    """The vectors of the plan's prologue."""
    return () if plan.prologue is None else plan.prologue.operands


def _vectors_of_arrays(plan: NamedPlan, values: Mapping[str, object]) -> list[object]:
    """The words of the prologue's vectors, with arrays in place of addresses."""
    words: list[object] = []
    for operand in _vectors(plan):
        bits = np.ascontiguousarray(operand.dtype.encode(np.asarray(values[operand.name]).astype(np.float32)))
        words += [bits, bits.shape[-1] if bits.ndim > 1 else 0]
    return words


def vectors_of_tensors(plan: NamedPlan, given: Given, device: torch.device) -> list[int]:
    """The words of the prologue's vectors on a GPU, checked."""
    words: list[int] = []
    for operand in _vectors(plan):
        value = given[operand.name]
        wanted = operand.shapes((plan.m, plan.n, plan.k, plan.batch), shared_axis(plan))
        want = next((shape for shape in wanted if len(shape) == getattr(value, "ndim", 0)), wanted[0])
        of = "row" if operand.axis == "m" else "column"
        _check_tensor(operand.name, value, operand.dtype.name, want, device, f", a number for each {of} of a")
        words += [value.data_ptr(), value.stride(0) if value.ndim > 1 else 0]
    return words


def run_by_name(
    plan: NamedPlan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor,
    given: Mapping[str, object], out: np.ndarray | torch.Tensor | None = None, copy: bool = True,
    device: str | None = None,
) -> GemmResult:  # fmt: skip
    """C of a plan that reads more than A and B. `given` has these operands by name.

    Raises OperandError for others, for one that is missing or out of range, and for tensors on the CPU.
    """
    if not isinstance(a, np.ndarray):
        return _by_name_on_tensors(plan, a, b, given, out, device, copy)
    values = values_read(plan, given)
    check_arrays(plan, a, b, out)
    chosen, why = chosen_device(plan, device)
    return run_on_device(plan, a, b, chosen, why, copy, values, words_read(plan, values)).into(out)


def execute_with_operands(
    plan: NamedPlan, a: GlobalMatrix, b: GlobalMatrix, given: Mapping[str, object], device: str
) -> np.ndarray:
    """C by the NumPy executor ("reference") or the compiled kernel ("emulator")."""
    values = values_read(plan, given)
    return executed(plan, a, b, device, values, words_read(plan, values))


def _by_name_on_tensors(
    plan: NamedPlan, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, object],
    out: torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """The same on CUDA tensors; a caller's list, tables, and vectors of row indices are tensors too.

    Further matrices are read in place; raises OperandError where the kernel cannot.
    """
    if not a.is_cuda or device not in (None, "cuda"):
        raise OperandError(
            f"a is on {a.device}: a plan that reads more than a and b takes CUDA tensors, or NumPy arrays"
        )
    check_names(plan, given)
    numbers = (*plan.numbers_given, *schedule_of(plan).words)
    tensors: Any = {name: x for name, x in given.items() if name not in numbers or hasattr(x, "data_ptr")}
    check_tensors(plan, a, b, out, tensors)
    require_gpu(plan, a.device.index)
    read = {**given, **{name: resolved(x.detach()) for name, x in tensors.items()}}
    placed = {name: _placed_tensor(plan, name, read[name]) for name in plan.further}
    workspace = rows_memory(plan, a.device)  # the allocator keeps the order of the stream
    words = words_of_tensors(plan, read, a.device, placed, workspace)
    return launch(plan, resolved(a.detach()), resolved(b.detach()), out, "", copy, words)


def _placed_tensor(plan: NamedPlan, name: str, x: torch.Tensor) -> Lines:
    """(lines, leading, distance of matrices) of a further matrix, read in place.

    Raises OperandError for one that does not fit.
    """
    operand, shape = plan.further[name]
    if x.dtype != torch_type(operand.dtype) or tuple(x.shape) != shape:
        raise OperandError(
            f"{name} is {x.dtype} of shape {tuple(x.shape)}: it takes {torch_type(operand.dtype)} of {shape}"
        )
    try:
        found: Lines = named(plan.operand_path).lines(plan, name, x, [], False)
    except OperandError as error:
        raise OperandError(f"{name}{str(error).removeprefix(operand.name.lower())}") from error
    return found


def _check_tensor(
    name: str, value: Any, kind: str, shape: tuple[int, ...], device: torch.device, of: str, contiguous: bool = True
) -> None:
    """Raise OperandError for another type, device or shape, and for numbers with gaps.

    of  the reason for the shape, in words
    """
    want = TORCH_NAMES[kind]
    if getattr(value, "device", None) != device or str(value.dtype) != f"torch.{want}":
        said = f"{getattr(value, 'dtype', type(value).__name__)} on {getattr(value, 'device', 'no device')}"
        raise OperandError(f"{name} is {said}: it takes torch.{want} on {device}")
    if tuple(value.shape) != shape:
        raise OperandError(f"{name} has shape {tuple(value.shape)}: it takes {shape}{of}")
    if contiguous and value.stride(-1) != 1 and value.shape[-1] > 1:
        raise OperandError(f"{name} has stride {value.stride(-1)}: it must be contiguous, stride 1")
