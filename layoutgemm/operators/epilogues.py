"""Epilogues of the Operator API as this package's. A function of `accum` becomes one `Custom` step.

the API's source                      here
------------------------------------  --------------------------------------------
+ - * /, constants, names             the same, in float32
relu tanh sigmoid silu hardswish      by `maximum`, `minimum`, `tanh`, `sigmoid`
gelu                                  x times the normal distribution's function
exp maximum minimum multiply_add      the same
D = ...; return D                     C; further results, reductions and layouts are refused
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cutlass.operators.utils.dtype import torch_type_from_cutlass_type
from cutlass.operators.utils.tensor import TensorWrapper

from ..arguments import shown
from ..errors import OperandError
from ..kernels.epilogue.chain import Custom, Epilogue
from ..kernels.epilogue.chain import EpilogueOperand as Operand
from ..torch_op.epilogue import finish_of
from ..torch_op.prepared import LaunchEpilogue
from ..torch_op.types import C_NAMES
from .api import api
from .problems import RESULT

Value: TypeAlias = Any  # of the traced function: a symbol or a number; of the arguments: whatever the caller gave
_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: lambda x, y: x + y, ast.Sub: lambda x, y: x - y, ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y,
}  # fmt: skip
_CALLS: dict[str, tuple[int, Callable[..., Value]]] = {
    "identity": (1, lambda ops, x: x),
    "relu": (1, lambda ops, x: ops.maximum(x, 0.0)),
    "tanh": (1, lambda ops, x: ops.tanh(x)),
    "sigmoid": (1, lambda ops, x: ops.sigmoid(x)),
    "silu": (1, lambda ops, x: x * ops.sigmoid(x)),
    "hardswish": (1, lambda ops, x: x * ops.minimum(ops.maximum(x + 3.0, 0.0), 6.0) / 6.0),
    "gelu": (1, lambda ops, x: x * ops.normal(x)),
    "exp": (1, lambda ops, x: ops.exp(x)),
    "maximum": (2, lambda ops, x, y: ops.maximum(x, y)),
    "minimum": (2, lambda ops, x, y: ops.minimum(x, y)),
    "multiply_add": (3, lambda ops, x, y, z: x * y + z),
}


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of the arguments as `finish_of` asks for one. Shape, strides, address, bytes of an element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    bytes: int

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    def stride(self, at: int) -> int:
        """Elements from one index of a dimension to the next."""
        return self.strides[at]

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.bytes


def finish_for(args: api.GemmArguments) -> LaunchEpilogue | None:
    """The steps between sums and stores; None without an epilogue.

    Raises OperandError, naming the operand or the line, for an epilogue that no kernel of this package has.
    """
    given = args.epilogue
    if given is None:
        return None
    if given.transports:
        raise OperandError(
            f"{', '.join(given.transports)}: a transport is asked for, and kernels here choose their own"
        )
    shape = tuple(map(int, args.out.tensor.shape))
    if not torch_type_from_cutlass_type(args.out.dtype).is_floating_point:
        raise OperandError(f"out is {args.out.dtype.__name__}, and an epilogue computes in float32")
    _check_result(given.tensors.get(RESULT), args.out.tensor)
    operands, placed = [], {}
    for name, x in given.tensors.items():
        if name != RESULT:
            operand, placed[name] = _operand(name, x, shape)
            operands.append(operand)
    epilogue = Epilogue(step_of(given.epilogue_fn, operands))
    return finish_of(epilogue, placed, shape)


def _check_result(d: Value, out: Value) -> None:
    """Raise OperandError unless D is `out`, the one matrix that a kernel writes."""
    if not isinstance(d, TensorWrapper) or any(
        getattr(d, part) != getattr(out, part) for part in ("data_ptr", "shape", "stride", "dtype")
    ):
        raise OperandError(f"{RESULT} is another tensor than out, and a kernel here writes one")


def _operand(name: str, x: Value, shape: Sequence[int]) -> tuple[Operand, Value]:
    """An operand of the epilogue and where it lies, batch in front. Raises OperandError for other shapes."""
    if not isinstance(x, TensorWrapper):
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise OperandError(f"{name} is a {type(x).__name__}: a tensor or a number")
        try:
            return Operand(name, "", "f32", host=True), float(x)  # type: ignore[arg-type]
        except OverflowError:
            raise OperandError(f"{name} = {shown(x)} is beyond float32") from None
    *batch, m, n = shape
    own, strides = tuple(map(int, x.shape)), tuple(map(int, x.stride))
    kind = torch_type_from_cutlass_type(x.dtype)
    lying: tuple[int, ...]
    if own in ((m, n), (*batch, m, n)):
        axes, lying, steps = "mn", (m, n), strides[-2:]
    elif own in ((n,), (1, n)):
        axes, lying, steps = "n", (n,), strides[-1:]
    elif own == (m, 1):
        axes, lying, steps = "m", (m,), strides[:1]
    else:
        fits = f"[{n}], [1, {n}], [{m}, 1] or {list(shape)}"
        raise OperandError(f"{name} has shape {list(own)}; for a product of shape {list(shape)} it is {fits}")
    if axes != "mn" and lying[0] > 1 and steps[0] != 1:
        raise OperandError(f"{name}: elements lie {steps[0]} apart, and an epilogue's vector is contiguous")
    if axes == "mn" and 1 not in steps:
        raise OperandError(f"{name}: strides {strides} leave neither rows nor columns contiguous")
    outer = strides[:1] if axes == "mn" and len(own) == 3 else (0,)
    if batch:
        lying, steps = (*batch, *lying), (*outer, *steps)
    placed = PlacedTensor(lying, steps, int(x.data_ptr), kind.itemsize)
    return Operand(name, axes, C_NAMES.get(kind, str(kind))), placed  # type: ignore[arg-type]


def step_of(function: Callable[..., Value] | str, operands: Sequence[Operand]) -> Custom:
    """The function as a step. Its source is read, as the API does, and never run.

    Raises OperandError, quoting the source, for anything that the table above does not have.

    >>> import numpy as np
    >>> step = step_of("def f(accum, alpha): t = accum * alpha; D = relu(t); return D",
    ...                [Operand("alpha", "", "f32", host=True)])
    >>> Epilogue(step).reference(np.array([[-1.0, 2.0]], np.float32), alpha=3.0).c.tolist()
    [[0.0, 6.0]]
    """
    source = function if isinstance(function, str) else inspect.getsource(function)
    made = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(made, ast.FunctionDef):
        raise OperandError(f"an epilogue is a function of accum, not {shown(ast.unparse(made))}")
    names = [operand.name for operand in operands]

    def traced(x: Value, i: Value, j: Value, ops: Value, *values: Value) -> Value:
        known = {"accum": x, **dict(zip(names, values, strict=True))}
        for line in made.body:
            if isinstance(line, ast.Return):
                if not isinstance(line.value, ast.Name) or line.value.id != RESULT:
                    raise OperandError(f"{shown(ast.unparse(line))}: a kernel here returns {RESULT} alone")
                return _value(line.value, known, ops)
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                raise OperandError(f"{shown(ast.unparse(line))}: an epilogue assigns names and returns {RESULT}")
            known[line.targets[0].id] = _value(line.value, known, ops)
        raise OperandError(f"the epilogue {made.name} returns nothing")

    return Custom.of(traced, *operands)


def _value(node: ast.expr, known: dict[str, Value], ops: Value) -> Value:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, known, ops)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, known, ops), _value(node.right, known, ops))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        count, call = _CALLS.get(node.func.id, (-1, None))
        if call is not None and count == len(node.args):
            return call(ops, *[_value(x, known, ops) for x in node.args])
    raise OperandError(f"{shown(ast.unparse(node))} in an epilogue: kernels here have + - * / and {', '.join(_CALLS)}")
