"""Element types, pointers, and values carried through traced control flow."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import cuda.bindings.driver as driver
import cutlass
import cutlass.experimental.cuda as xcuda
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, TFloat32, Uint8, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cutlass_dsl import dsl_user_op

from layoutgemm.dtypes import DType
from layoutgemm.errors import PlanError

R = TypeVar("R", bound="Rebuilt")

TensorMap: Any = xcuda.TensorMap
"""Type of a kernel parameter that holds a tensor map, inside `cutlass.GridConstant[...]`."""

Stream: Any = driver.CUstream
"""Type of a host function's stream parameter."""

_ELEMENT_TYPES = {
    "bf16": BFloat16,
    "f16": Float16,
    "f32": Float32,
    "tf32": TFloat32,
    "e4m3": Float8E4M3FN,
    "e5m2": Float8E5M2,
    "i8": Int8,
    "u8": Uint8,
    "i32": Int32,
}

MAJOR_MODES = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN}


Maps = Sequence[TensorMap]
Place = tuple[Int32, Int32, Int32]  # row, column and matrix, in elements of C


def element_type(dtype: DType) -> type[cutlass.Numeric]:
    """The DSL's type for one of our element types: DType -> cutlass.Numeric subclass.

    Raises PlanError for a type that no kernel of this package loads, multiplies or stores.
    """
    try:
        return _ELEMENT_TYPES[dtype.name]
    except KeyError:
        known = ", ".join(_ELEMENT_TYPES)
        raise PlanError(f"the bridge has no DSL type for {dtype.name}; it knows {known}") from None


def raw(pointer: cute.Pointer) -> ir.Value:
    """A cute.Pointer as the pointer type that the primitives take."""
    return cutlass.Pointer._from_raw_ptr(pointer.llvm_ptr)


@dsl_user_op
def assembly(
    text: str,
    constraints: str,
    operands: Sequence[cutlass.Numeric],
    results: Sequence[type[cutlass.Numeric]] = (),
    *,
    pure: bool = False,
    loc: object = None,
    ip: object = None,
) -> list[cutlass.Numeric]:
    """Inline PTX: values of the DSL in, values of the types `results` out.

    text         instructions; $0, $1, ... are the results, then the operands
    constraints  LLVM's: one a result ("=r"), one an operand ("l"), then what is touched besides ("~{memory}")
    pure         results follow from operands alone: the compiler may move, merge or drop the instruction
    """
    kinds = [result.mlir_type for result in results]
    found = llvm.inline_asm(
        None if not kinds else kinds[0] if len(kinds) == 1 else llvm.StructType.get_literal(kinds),
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        constraints,
        has_side_effects=not pure,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    if len(kinds) < 2:
        return [result(found) for result in results]
    return unpacked(found, results, loc=loc, ip=ip)


def unpacked(
    struct: ir.Value, results: Sequence[type[cutlass.Numeric]], *, loc: object = None, ip: object = None
) -> list[cutlass.Numeric]:
    """The parts of a struct of the LLVM dialect, as values of the DSL's types."""
    parts = enumerate(results)
    return [kind(llvm.extractvalue(kind.mlir_type, struct, position=[i], loc=loc, ip=ip)) for i, kind in parts]


def unrolled(count: int) -> tuple[int, ...]:
    """0, 1, ... count - 1 for a loop that the trace unrolls. `range_constexpr` warns from 64 iterations on."""
    return tuple(range(count))


class Rebuilt:
    """An object whose attributes named in `held` are run-time values, or lists of them. All else on it is constant.

    The DSL carries an object into a traced `if` or loop as its run-time values, and rebuilds it from them inside.
    """

    held: tuple[str, ...] = ()

    def __extract_mlir_values__(self) -> list[object]:
        every = [x for name in self.held for x in _listed(getattr(self, name))]
        return [value for x in every for value in cutlass.extract_mlir_values(x)]

    def __new_from_mlir_values__(self: R, values: list[object]) -> R:
        twin, at = copy.copy(self), 0
        for name in self.held:
            made, old = [], getattr(self, name)
            for x in _listed(old):
                count = len(cutlass.extract_mlir_values(x))
                made.append(cutlass.new_from_mlir_values(x, values[at : at + count]))
                at += count
            twin.__dict__[name] = made if isinstance(old, list) else made[0]
        return twin


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


class Carried(Rebuilt):
    """Named run-time values, and constants, that travel together through traced loops and branches.

    Give the run-time values as keywords; whatever else a subclass sets on itself is constant.
    """

    def __init__(self, **values: Any):
        self.held = tuple(values)
        self.__dict__.update(values)

    def extended(self, **more: Any) -> Carried:
        """The same run-time values, and more."""
        return Carried(**{name: self.__dict__[name] for name in self.held}, **more)

    def __getattr__(self, name: str) -> Any:  # for type checkers: the values are set as attributes
        raise AttributeError(f"{type(self).__name__} carries no {name}")
