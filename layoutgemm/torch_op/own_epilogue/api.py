"""matmul(a, b, epilogue=, given=). A kept launch, or all checks, then a kernel or torch's dispatcher.

Compilers, torch.func, modes, fake tensors and subclasses see the operator `epilogue_matmul`: one node of a graph. It
writes to the operands that the steps write.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.plan import present
from ...kernels.run.operand_checks import check_operands, same_memory
from ..checks import (
    NOT_RECORDED,
    autocast,
    check_call,
    check_out,
    check_written,
    copied,
    derived_by_transform,
    differentiated,
    has_tangent,
    refuse_traces,
    seen_and_recorded,
)
from ..compiled.kept_launches import epilogue_again_or
from ..compiled.traced import check_kinds, check_number, named, refusal, refuse, refuse_finish, traced_flag
from ..epilogue import (
    GivenOperands,
    Tensors,
    arguments_beside,
    check_epilogue,
    check_fit,
    epilogue_product,
    gate_of,
    refusal_of_epilogue,
)
from ..prepared import Config, choice_of, config_text
from ..problem import gated_shapes
from .derivatives import EpilogueProduct, derivable, dispatched, recorded
from .operators import CHECK_EPILOGUE, operand_names


def epilogue_matmul(
    a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue | None, given: Mapping[str, object] | None, *,
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, config: Config | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The product with its epilogue; without elements where that stores no C.

    Raises OperandError or TensorError before anything is written, naming the operand.

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> x, given = torch.eye(2).bfloat16(), {"bias": torch.tensor([1.0, 2.0])}
    >>> nothing = dict.fromkeys(("bias", "activation", "out", "config", "out_dtype", "allow_tf32"))
    >>> epilogue_matmul(x, x, Epilogue(Bias()), given, **nothing).tolist()
    [[2.0, 2.0], [1.0, 3.0]]
    """
    beside, gate = arguments_beside(bias, activation), gate_of(activation)
    if torch.compiler.is_dynamo_compiling():
        gating = None if gate is None else activation
        return _traced(a, b, epilogue, given, beside, out, config, out_dtype, allow_tf32, gating)

    def make() -> torch.Tensor:
        refuse_traces("epilogue=")
        # By classes alone: tensors are handed on in the order of the package's docstring.
        if text := refusal_of_epilogue(epilogue, {} if isinstance(given, Mapping) else given, beside, bool(gate)):
            raise OperandError(text)
        steps, every = present(epilogue), dict({} if given is None else given)
        check_epilogue(steps, {name: type(x) for name, x in every.items()}, bool(gate))
        operands = GivenOperands(every, *[{name: every[name] for name in each} for each in (steps.reads, steps.writes)])
        into = {} if out is None else {"out": out}
        # Of an operand in place each element would have to be read before any thread stores it.
        apart = [name for name, x in operands.read.items() if same_memory(x, out)] if into else []
        check_operands({"a": a, "b": b, **operands.read}, operands.written if apart else {**operands.written, **into})
        if apart:
            others = {name: x for name, x in operands.tensors.items() if name not in apart}
            check_operands({"a": a, "b": b, **others}, into)
        check_written(operands.written)
        choice_of(config)
        left, right, kind = check_call(a, b, None, out_dtype, allow_tf32)
        if out is not None:
            check_out(out, gated_shapes(left.shape, right.shape, gate).result, kind, {"a": left, "b": right})
        if apart:
            value = epilogue_matmul(
                a, b, epilogue, given, bias=bias, activation=activation, out=None, config=config, out_dtype=out_dtype,
                allow_tf32=allow_tf32,
            )  # fmt: skip
            return copied(value, out)
        tensors = left, right, *operands.tensors.values()
        sees, records = seen_and_recorded(tensors, out)
        if not (sees or records):
            with torch.no_grad():
                return epilogue_product(left, right, kind, steps, operands.every, config, out, gate)
        shape = tuple(check_fit(left, right, kind, steps, operands.every, out, gate).result)
        call = EpilogueProduct(left, right, kind, steps, operands.every, shape, gate, activation)
        if derived_by_transform() or any(has_tangent(x) for x in tensors):
            return derivable(call, config) if out is None else copied(derivable(call, config), out)
        return copied(dispatched(call, config), out) if sees else recorded(call, config)

    if beside or getattr(a, "dtype", None) is torch.float32:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    return epilogue_again_or(make, ("matmul", out_dtype, config, gate), {"a": a, "b": b}, epilogue, given, out)


def _traced(
    a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue | None, given: Mapping[str, object] | None, beside: list[str],
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
    activation: str | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    text, lists = traced_operands(epilogue, given, beside, {"a": a, "b": b}, out, activation is not None)
    if differentiated(a, b, out, *lists[0], *lists[1]):  # type: ignore[arg-type]  # tensors, by the checks
        refuse(NOT_RECORDED if out is not None else refusal("derivative", text, a.dtype, out_dtype))
    refuse(refusal("config", config))
    refuse_finish(None, a, out_dtype)
    a, b = autocast(a, b)
    allowed = traced_flag(allow_tf32)
    CHECK_EPILOGUE(a, b, *lists, text, out, out_dtype, allowed, activation)
    value: torch.Tensor = torch.ops.layoutgemm.epilogue_matmul(
        a, b, *lists, text, out_dtype, config_text(config), allowed, activation
    )
    return copied(value, out)


def traced_operands(
    epilogue: Epilogue | None, given: Mapping[str, object] | None, beside: list[str], tensors: Tensors,
    out: torch.Tensor | None, gated: bool = False,
) -> tuple[str, tuple[list[torch.Tensor | int | float], ...]]:  # fmt: skip
    """An epilogue's text and its operands in the operators' four lists, refused under the compiler.

    beside, gated  as `refusal_of_epilogue` has them
    tensors  that the product reads, by name
    """
    if refused := refusal_of_epilogue(epilogue, given, beside, gated):
        refuse(refused)
    assert epilogue is not None
    every: Tensors = {} if given is None else dict(given)
    text = epilogue.json
    refuse(refusal("epilogue", text, tuple(every)))
    reads, writes, numbers, wholes = operand_names(text)
    read, written = {name: every[name] for name in reads}, {name: every[name] for name in writes}
    check_kinds({**tensors, **read}, {**written, **named(out=out)})
    for name in (*numbers, *wholes):
        check_number(name, every[name], name in wholes)
    launched = [float(every[name]) for name in numbers], [every[name] for name in wholes]
    return text, (list(read.values()), list(written.values()), *launched)
