"""The types of A, B and C of the Hopper kernel.

    A and B             majors    accumulator  C
    ----------------    ------    -----------  -----------------------------
    bf16 both           any       f32          f32, bf16, f16, e4m3, e5m2
    f16 both            any       f32          the same
    e4m3 or e5m2 each   K         f32          the same
    tf32 both           K         f32          the same
    i8 or u8 each       K         i32          i32, or the others' by way of f32

K-major: an A whose rows are contiguous ("row"), a B whose columns are ("col"). PTX ISA, "wgmma.mma_async": only 16-bit
operands in shared memory may be transposed.

tf32 is given as f32, 32 bits an element. The TMA load rounds each element to the nearest tf32, ties to even. A tensor
map of CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 does so, as measured on an H200 (tests/vectors/tma_h200.json). The lowest 13
bits are zeros by then; the tensor core ignores them in any case (benchmarks/results/emulator_h200.json). A relative
error of 2**-11 in each operand is therefore what the type costs.

Integer sums are exact, and stop at the ends of int32 (.satfinite, after every 32 of K): those of i8 times i8 fit up to
K = 131071. Stored as floats, or passed through an epilogue, which computes in f32, they are rounded to f32 first: from
2**24 on that may change them.
"""

from __future__ import annotations

from ...dtypes import DType, dtype
from ...errors import PlanError
from ..derive import Operand, OperandSpec, check_pair, refused_output

INPUTS = ("bf16", "f16", "e4m3", "e5m2", "tf32", "i8", "u8")
_INTEGERS = ("i8", "u8")
_FLOATS = ("f32", "bf16", "f16", "e4m3", "e5m2")
_OUTPUTS = {"f32": _FLOATS, "i32": ("i32", *_FLOATS)}
_K_MAJOR = {"a": "row", "b": "col"}


def accumulator_of(a: DType) -> str:
    """The type that products of A's type are summed in.

    >>> accumulator_of(dtype("tf32")), accumulator_of(dtype("u8"))
    ('f32', 'i32')
    """
    return "i32" if a.name in _INTEGERS else "f32"


def output_of(a: DType) -> DType:
    """C's type where none is given. A's where it has 16 bits, bf16 for 8-bit floats, else the accumulator's.

    >>> [output_of(dtype(name)).name for name in INPUTS]
    ['bf16', 'f16', 'bf16', 'bf16', 'f32', 'i32', 'i32']
    """
    if a.bits == 16:
        return a
    return dtype("bf16") if a.name in ("e4m3", "e5m2") else dtype(accumulator_of(a))


def operands(a: OperandSpec, b: OperandSpec | None, c: OperandSpec | None) -> tuple[Operand, Operand, Operand]:
    """A, B and C as given, with what is left out. B of A's type, row-major, and C of `output_of` A's, row-major.

    Raises PlanError for types that the kernel has not and for an order that its instruction does not read.

    >>> [str(operand) for operand in operands("i8", "u8:col", None)]
    ['i8 row-major', 'u8 col-major', 'i32 row-major']
    """
    a_given = Operand.parse(a)
    given = {"a": a_given, "b": Operand.parse(a_given.dtype if b is None else b)}
    c_given = Operand.parse(output_of(a_given.dtype) if c is None else c)
    for name, spec in given.items():
        if spec.dtype.name not in INPUTS:
            hint = ": say 'tf32' for f32 rounded to 11 bits of its significand" if spec.dtype.name == "f32" else ""
            raise PlanError(f"{name} is {spec.dtype}; this kernel multiplies {', '.join(INPUTS)}{hint}")
    check_pair(a_given, given["b"])
    for name, spec in given.items():
        if spec.dtype.bits != 16 and spec.order != _K_MAJOR[name]:
            raise PlanError(
                f"{name} is {spec}, and wgmma reads {spec.dtype} K-major alone: plan '{spec.dtype}:{_K_MAJOR[name]}', "
                "and a run copies what lies otherwise"
            )
    known = _OUTPUTS[accumulator_of(a_given.dtype)]
    if c_given.dtype.name not in known:
        raise refused_output(c_given.dtype, a_given.dtype, known)
    return a_given, given["b"], c_given
