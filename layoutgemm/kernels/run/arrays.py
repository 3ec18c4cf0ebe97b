"""NumPy operands of a run, and its output. Kinds, shapes, types, and the bits as they lie in global memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...arguments import nearest, shown
from ...dtypes import bf16, dtype, f16, i8, tf32, u8
from ...errors import OperandError
from ..alignment import line_misfit
from ..derive import OperandPlan, is_padded, memory_unit, padded_leading
from ..operands.product import SeveralOperands
from ..plan import GemmPlan
from .hardware_model import GlobalMatrix
from .operand_checks import check_operands
from .result import DEVICES

if TYPE_CHECKING:
    import torch


# Values that NumPy can hold of each type; float32 given for a narrower type is rounded to it, to nearest even.
NUMPY_TAKES = {
    bf16: ("float32", "bfloat16"),
    f16: ("float32", "float16"),
    dtype("e4m3"): ("float32", "float8_e4m3fn"),
    dtype("e5m2"): ("float32", "float8_e5m2"),
    tf32: ("float32",),
    **{dtype(name): ("float32",) for name in ("e2m1", "e2m3", "e3m2")},
    i8: ("int8",),
    u8: ("uint8",),
}


def columns_of_b(plan: GemmPlan) -> int:
    """N, or 2 N for a gated product: the gate's columns, then the others."""
    return plan.n * plan.halves if isinstance(plan, SeveralOperands) else plan.n


def batched(plan: GemmPlan, shape: tuple[int, int], name: str = "c") -> tuple[int, ...]:
    """The shape of one matrix, or of the plan's batch. B alone has a batch of joined rows, C alone one of groups along
    K."""
    if isinstance(plan, SeveralOperands):
        return (*plan.front(name), *shape)
    return (plan.batch, *shape) if plan.batch > 1 else shape


def global_matrix(operand: OperandPlan, value: np.ndarray, copies: list[str], copy: bool) -> GlobalMatrix:
    """The operand's bits in global memory, with a pitch that a tensor map takes.

    Values must be converted to bits in any case; what counts as a copy here is a pitch other than the matrix's own.
    """
    lines = value if operand.order == "row" else value.swapaxes(-1, -2)  # lines of contiguous elements
    unit = memory_unit(operand.dtype)
    count, extent = lines.shape[-2], lines.shape[-1] * operand.dtype.bits // unit.bits
    # One line has no pitch; of a batch, it is as far from the next matrix's.
    leading = padded_leading(unit, extent) if count > 1 or lines.ndim > 2 else extent
    if leading != extent:
        rule = line_misfit(extent, 1, 2, extent, unit.bytes)
        refuse_or_note(f"{operand.name.lower()}: {rule}", f"pitch {leading}", copies, copy)
    buffer = np.zeros((*lines.shape[:-1], leading), dtype=unit.storage)
    buffer[..., :extent] = raw_bits(operand, lines)
    inner = lines.shape[-1] if is_padded(operand) else extent  # as the tensor map counts
    return GlobalMatrix(buffer.reshape(-1), leading, (inner, count, *lines.shape[:-2]), count * leading)


def pitch_of_map(operand: OperandPlan, matrix: GlobalMatrix) -> int:
    """The pitch of a matrix's tensor map. A matrix of one line has none, and the map wants one that it takes."""
    return padded_leading(memory_unit(operand.dtype), matrix.extents[0]) if matrix.extents[1] == 1 else matrix.leading


def raw_bits(operand: Any, values: np.ndarray, rounds: bool = False) -> np.ndarray:
    """The bits of values of the operand's type, rounded to it if asked.

    rounds  round those of tf32, too: a tensor copy rounds them itself
    """
    if (rounds or operand.dtype != tf32) and values.dtype.name in ("float32", "float16"):
        bits = operand.dtype.encode(values)
        return bits if operand.dtype.bits >= u8.bits else packed_bits(bits, operand.dtype.bits)
    return values.view(operand.dtype.storage)


def packed_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of elements narrower than a byte, packed along the last dimension. The first has the lowest bits.

    >>> packed_bits(np.array([1, 2, 3, 4], np.uint8), 4), packed_bits(np.array([1, 0, 0, 63], np.uint8), 6)
    (array([33, 67], dtype=uint8), array([  1,   0, 252], dtype=uint8))
    """
    split = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(split.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def refuse_or_note(rule: str, made: str, copies: list[str], copy: bool) -> None:
    """Raise OperandError with the rule, or note the copy that makes the operand acceptable."""
    if not copy:
        raise OperandError(f"{rule}; copy=True makes a copy with {made}")
    copies.append(f"{rule}: copied with {made}")


def check_device_name(device: str | None) -> None:
    """Raise OperandError for a device that there is not."""
    if device not in (None, *DEVICES):
        meant, known = nearest(device, DEVICES), ", ".join(map(repr, DEVICES))
        raise OperandError(f"device {shown(device)}: {meant}known are {known}, or None to choose")


def check_matrices(
    plan: GemmPlan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, device: str | None
) -> str:
    """The kind of both operands: "NumPy array" or "torch tensor on ...".

    Raises OperandError for a device that there is not, two kinds, and shapes that are not the plan's.
    """
    check_device_name(device)
    kinds = {name: kind_of(name, value) for name, value in (("a", a), ("b", b))}
    if len(set(kinds.values())) > 1:
        raise OperandError(f"a is a {kinds['a']} and b a {kinds['b']}: give both as one kind, on one device")
    check_shapes(plan, a, b)
    return kinds["a"]


def check_shapes(plan: GemmPlan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor) -> None:
    """Raise OperandError for an operand whose shape is not the plan's.

    A tensor of 4-bit elements counts pairs, and one of 6-bit elements the bytes in which they lie packed.
    """
    of_a, of_b = [
        plan.k if isinstance(a, np.ndarray) else plan.k * operand.dtype.bits // memory_unit(operand.dtype).bits
        for operand in (plan.a, plan.b)
    ]
    for name, value, shape in (("a", a, (plan.rows_of_a, of_a)), ("b", b, (of_b, columns_of_b(plan)))):
        check_shape(name, value, batched(plan, shape, name))


def check_arrays(plan: GemmPlan, a: np.ndarray, b: np.ndarray, out: object) -> None:
    """Raise OperandError for a NumPy array of another type than the plan's."""
    for operand, value in ((plan.a, a), (plan.b, b)):
        check_numpy_type(operand, value)
    if out is not None:
        check_numpy_out(plan, out)


def kind_of(name: str, value: Any) -> str:
    """An operand's kind in words. Raises OperandError for anything but an array or a dense tensor."""
    if isinstance(value, np.ndarray):
        return "NumPy array"
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "data_ptr"):
        check_operands({name: value})
        return f"torch tensor on {value.device}"
    raise OperandError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; give NumPy arrays or torch tensors"
    )


def check_shape(name: str, value: np.ndarray | torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise OperandError for another shape."""
    if tuple(value.shape) != shape:
        raise OperandError(f"{name} has shape {tuple(value.shape)}, the plan takes {shape}")


def check_numpy_type(operand: Any, value: np.ndarray) -> None:
    """Raise OperandError for an array that does not hold values of the operand's type."""
    takes = NUMPY_TAKES[operand.dtype]
    if value.dtype.name not in takes:
        raise OperandError(
            f"{operand.name.lower()} is {value.dtype}; the plan's {operand.dtype} is given as {' or '.join(takes)}"
        )


def check_numpy_out(plan: GemmPlan, out: object) -> None:
    """Raise OperandError for an output that cannot take the plan's C."""
    want = "a float32" if plan.c.dtype.kind == "float" else "an int32"
    if not isinstance(out, np.ndarray) or out.dtype.name != want.split()[1]:
        raise OperandError(f"out must be {want} NumPy array, as the result is; got {getattr(out, 'dtype', type(out))}")
    check_shape("out", out, batched(plan, (plan.rows_of_c, plan.n)))
    if not out.flags.writeable:
        raise OperandError("out is read-only")
