"""matmul(a, (b0, b1), combine=). A kept launch, or all checks, then a kernel or torch's dispatcher.

Compilers, torch.func, modes, fake tensors and subclasses see the operator `combined_matmul`: one node of a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import FunctionType

import torch

from ...dtypes import f32
from ...errors import TensorError
from ...kernels.epilogue.steps import EpilogueOperand
from ...kernels.operands.combined import Combine, Combined, refusal_of_matrices, sum_name
from ...memo import function_key
from ..checks import (
    NOT_RECORDED,
    autocast,
    copied,
    derived_by_transform,
    differentiated,
    has_tangent,
    refuse_traces,
    seen,
)
from ..compiled.function_tape import Constants, followed
from ..compiled.kept_launches import Extras, again_or
from ..compiled.traced import check_kinds, check_number, named, refusal, refuse, refuse_finish, traced_flag
from ..prepared import Config, config_text
from .operators import CHECK_COMBINED, CombinedCall, derivable, dispatched, recorded, text_of
from .several import NO_DICT, checked_call, computed


def matmul_combined(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """combine(a @ b[0], a @ b[1], ...): `matmul` of several matrices. See the module's docstring.

    Raises TensorError for shapes, types and devices that do not meet, OperandError for a function or numbers that do
    not fit, and for a GPU without such kernels.

    >>> x, w = torch.eye(2).half(), torch.tensor([[1.0, -2.0], [3.0, 4.0]]).half()
    >>> matmul_combined(x, (w, w), lambda p, q, ops, s: ops.maximum(p, 0.0) + s * q, {"s": 10}, None, None, None, None)
    tensor([[ 11., -20.],
            [ 33.,  44.]], dtype=torch.float16)
    """

    if torch.compiler.is_dynamo_compiling():
        return _traced(a, b, combine, given, out, config, out_dtype, allow_tf32)

    def make() -> torch.Tensor:
        refuse_traces("combine=")
        call = CombinedCall(*checked_call(a, b, combine, given, out, config, out_dtype, allow_tf32))
        operands = (call.a, *call.matrices)
        records = differentiated(*operands)
        if records and out is not None:
            raise TensorError(NOT_RECORDED)
        if seen(*operands, out):
            derives = derived_by_transform() or any(has_tangent(x) for x in operands)
            return copied(derivable(call) if derives else dispatched(call, config), out)
        if records:
            return recorded(call, config)
        with torch.no_grad():
            return computed(*call, config, out)

    values = {} if given is None else given
    plain = isinstance(b, (tuple, list)) and type(values) is dict and all(type(name) is str for name in values)
    if not plain or getattr(a, "dtype", None) is torch.float32:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    extras = Extras(numbers=numbers_named(tuple(values)), given=values)
    options = ("matmul, combine=", function_key(combine), tuple(values), config, out_dtype)
    return again_or(make, options, {"a": a, **{f"b{i}" if i else "b": x for i, x in enumerate(b)}}, out, extras)


@functools.lru_cache(256)
def numbers_named(names: tuple[str, ...]) -> tuple[EpilogueOperand, ...]:
    """The function's numbers as a launch takes them. A name that no function has is refused with the function."""
    return tuple([EpilogueOperand(name, "", f32, host=True) for name in names if name.isidentifier()])


def function_text(combine: Combine, matrices: int, given: Mapping[str, object] | None) -> tuple[str, dict[str, object]]:
    """(text of a function of several sums, its numbers by name). Refuses under torch.compile."""
    if given is not None and not isinstance(given, Mapping):
        refuse(NO_DICT.format(type(given).__qualname__))
    values = {} if given is None else dict(given)
    if isinstance(combine, Combined):
        refuse(refusal("combine text", combine.json, matrices, tuple(values)))
        return combine.json, values
    function = followed_sums(combine, matrices, tuple(values))
    text = text_of(function, matrices, tuple(values))
    if not text:
        refuse(refusal("combine", function, matrices, tuple(values)))
    return text, values


def followed_sums(combine: Combine, matrices: int, numbers: tuple[str, ...]) -> Combine | Constants:
    """A function of sums and numbers as the compiler follows it; a gate's name."""
    if not callable(combine):
        return combine
    if isinstance(combine, FunctionType):
        defaults = len(combine.__defaults__ or ())
        refuse(refusal("parameters of combine", combine.__code__, defaults, matrices, numbers))
    sums = tuple([sum_name(i) for i in range(matrices)])
    return followed(combine, (*sums, "ops", *numbers), matrices, "combine", matrices, numbers)


def _traced(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    refuse(refusal_of_matrices(b))
    text, values = function_text(combine, len(b), given)
    check_kinds({"a": a, **{f"b[{i}]": x for i, x in enumerate(b)}}, named(out=out))
    for name, x in values.items():
        check_number(name, x, False)
    numbers = [float(x) for x in values.values()]  # type: ignore[arg-type]  # each is a number, by the check
    refuse(refusal("config", config))
    refuse_finish(None, a, out_dtype)
    if out is not None and differentiated(a, *b, out):
        refuse(NOT_RECORDED)
    left = autocast(a, b[0])[0]
    matrices = [autocast(a, x)[1] for x in b]
    allowed = traced_flag(allow_tf32)
    CHECK_COMBINED(left, matrices, numbers, text, out, out_dtype, allowed)
    value: torch.Tensor = torch.ops.layoutgemm.combined_matmul(
        left, matrices, numbers, text, out_dtype, config_text(config), allowed
    )
    return copied(value, out)
