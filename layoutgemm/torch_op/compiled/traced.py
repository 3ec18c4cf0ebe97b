"""Checks of calls that torch.compile traces. A refusal is raised where the compiler keeps its text.

An exception of traced Python is built by the compiler, and torch before 2.13 drops the text of ours. So nothing is
raised there. Operators without a result check the tensors, by the same functions as everywhere. The compiler
reports an exception of their fake kernels with its text. Compiled graphs drop these operators; torch.export in strict
mode keeps them until `run_decompositions`.

    check(a, b, out, bias, activation, out_dtype, allow_tf32)          a call of `matmul`
    check_gemm(a, b, c, out, alpha, beta, scales, allow_tf32)          a call of `gemm`
    check_scaled(...), check_grouped(...)                              `scaled_grouped.operators`
    refuse(text)                                                       what is no tensor where one is asked for
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch.types import Number

from ...arguments import unknown_argument
from ...errors import LayoutError, OperandError
from ...graph_marks import constant_in_graphs
from ...kernels.epilogue.parameters import host_number
from ...kernels.run.operand_checks import check_operands, same_memory
from ..checks import (
    NOT_RECORDED,
    autocast,
    check_activation,
    check_call,
    check_gemm,
    check_gemm_sizes,
    check_sizes,
    differentiated,
    product_shape,
    scalar_of,
    stored_as,
    tf32_allowed,
)
from ..prepared import choice_of
from ..types import NAMES
from .constant_objects import constant_of_objects
from .lowering import register

_library = torch.library.Library("layoutgemm", "FRAGMENT")
OF_TENSORS: dict[str, Callable[..., object]] = {}  # name of an operator without a result -> its check
_MOST = 2**63  # beyond the integers that an operator's schema holds


# ------------------------------------------------------------------------------------------------------------ operators


def _checked(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> None:  # fmt: skip
    check_operands(named(a=a, b=b, bias=bias), named(out=out))
    a, b, kind = check_call(a, b, activation, out_dtype, allow_tf32)
    check_sizes(a, b, out, bias, activation, kind, product_shape(a, b))


def _checked_gemm(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, out: torch.Tensor | None, alpha: Number | None,
    beta: Number | None, scales: Sequence[torch.Tensor], allow_tf32: bool | None,
) -> None:  # fmt: skip
    """`scales` has the tensors in place of a missing alpha or beta, in order."""
    tensors = iter(scales)
    whole = not (a if c is None else c).dtype.is_floating_point
    one = next(tensors) if alpha is None else _settled(alpha, whole)
    two = next(tensors) if beta is None else _settled(beta, whole or c is None)
    check_operands(named(a=a, b=b, c=c))
    check_operands(named(a=a, b=b, c=None if same_memory(c, out) else c), named(out=out))
    one, a, b, two, c, kind = check_gemm(one, a, b, two, c, allow_tf32)
    check_gemm_sizes(one, a, b, two, c, out, kind, product_shape(a, b))


def named(**operands: object) -> dict[str, Any]:
    """The operands that are given."""
    return {name: x for name, x in operands.items() if x is not None}


def _settled(x: object, exact: bool) -> Any:
    """A number that may be a symbol: 0, or what stands for others that no check refuses, unless it has to be exact."""
    if not isinstance(x, (torch.SymInt, torch.SymFloat)):
        return x
    if x == 0:
        return 0
    if isinstance(x, torch.SymInt):
        return 1 if not exact and -(2**31) <= x < 2**31 else int(x)
    return 1.0 if not exact and -(2.0**127) < x < 2.0**127 else float(x)


def _refuse(text: str) -> None:
    raise OperandError(text)


def _nothing(*arguments: object) -> None:
    """A graph that runs has been checked when it was traced."""


def _as_torch_reads(kind: Any) -> Any:
    """A type in a signature. Torch 2.6 reads the aliases of `typing` alone.

    >>> _as_torch_reads(Sequence[int]), _as_torch_reads(list[torch.Tensor]), _as_torch_reads(int)
    (typing.Sequence[int], typing.List[torch.Tensor], <class 'int'>)
    """
    alias: Any = {Sequence: typing.Sequence, list: typing.List}.get(typing.get_origin(kind))  # noqa: UP006
    return alias[typing.get_args(kind)] if alias else kind


def schema_of(call: Callable[..., object], mutates: Sequence[str] = (), returns: object = torch.Tensor) -> str:
    """The schema of an operator with the parameters of `call`.

    mutates, returns  the lists of tensors that are written to, and the type of the result
    """

    def prototype() -> None: ...

    typed = inspect.signature(call, eval_str=True).replace(return_annotation=_as_torch_reads(returns))
    given = [each.replace(annotation=_as_torch_reads(each.annotation)) for each in typed.parameters.values()]
    prototype.__signature__ = typed.replace(parameters=given)  # type: ignore[attr-defined]
    found: str = torch.library.infer_schema(prototype, mutates_args=tuple(mutates))
    return found


def checking_operator(name: str, check: Callable[..., object]) -> Callable[..., None]:
    """An operator without a result, whose fake kernel is the check. Under vmap, of one slice.

    check  whose parameters are the operator's; its result is not used
    """
    made = torch.library.custom_op(
        f"layoutgemm::{name}", _nothing, mutates_args=(), schema=schema_of(check, returns=None)
    )
    made.register_fake(lambda *arguments: (check(*arguments), None)[1])
    operator = getattr(torch.ops.layoutgemm, name).default

    def of_slices(info: object, in_dims: tuple[object, ...], *arguments: object) -> tuple[None, None]:
        operator(*[_slice(x, at) for x, at in zip(arguments, in_dims, strict=True)])
        return None, None

    made.register_vmap(of_slices)

    def below(keys: torch._C.DispatchKeySet, *arguments: object) -> None:
        with torch._C._AutoDispatchBelowAutograd():
            operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    # Nothing to derive. torch.library's own kernel refuses torch.func in words of its own, before the product can.
    for device in ("CUDA", "CPU", "Meta"):
        _library.impl(name, below, f"Autograd{device}", with_keyset=True)
    OF_TENSORS[name] = check
    return operator


def _slice(x: Any, at: Any) -> object:
    """The argument without the dimension that is mapped."""
    if isinstance(x, (list, tuple)) and isinstance(at, (list, tuple)):
        return [_slice(each, of) for each, of in zip(x, at, strict=True)]
    return x if at is None else x.select(at, 0)


_CHECK = checking_operator("check", _checked)
_CHECK_GEMM = checking_operator("check_gemm", _checked_gemm)
_REFUSE = checking_operator("refuse", _refuse)


# --------------------------------------------------------------------------------------------------------- traced calls


def check_compiled(
    a: object,
    b: object,
    out: object,
    bias: object,
    activation: object,
    config: object,
    out_dtype: object,
    allow_tf32: bool | None,
) -> None:
    """Check a call of `matmul` that is being traced. Tensors by the operator, all else as constants."""
    check_kinds({"a": a, "b": b, **named(bias=bias)}, named(out=out))
    refuse(refusal("config", config))
    refuse_finish(activation, a, out_dtype)
    if out is not None and differentiated(a, b, bias, out):  # which an operator's kernel does not see
        refuse(NOT_RECORDED)
    a, b = autocast(a, b)  # an operator's kernel does not see the region either
    _CHECK(a, b, out, bias, activation, out_dtype, traced_flag(allow_tf32))


def refuse_finish(activation: object, a: Any, out_dtype: object) -> None:
    """Refuse an unknown activation, and a result type that is no torch.dtype."""
    refuse(refusal("activation", activation))
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        refuse(refusal("out_dtype", a.dtype, out_dtype))


def check_compiled_gemm(
    alpha: object, a: Any, b: object, beta: object, c: Any, out: object, config: object, allow_tf32: bool | None
) -> None:
    """Check a call of `gemm` that is being traced, likewise."""
    check_kinds({"a": a, "b": b, **named(c=c)}, named(out=out))
    refuse(refusal("config", config))
    numbers: list[Any] = []
    for name, x in (("alpha", alpha), ("beta", beta)):
        tensor = isinstance(x, torch.Tensor)
        fits = isinstance(x, float) or (isinstance(x, int) and not isinstance(x, bool) and -_MOST < x < _MOST)
        if not tensor and not fits:
            refuse(refusal("scalar", name, x, (a if c is None else c).dtype))
        numbers.append(None if tensor else x)
    scales = [x for x in (alpha, beta) if isinstance(x, torch.Tensor)]
    if out is not None and differentiated(a, b, c, out, *scales):
        refuse(NOT_RECORDED)
    a, b = autocast(a, b)
    _CHECK_GEMM(a, b, c, out, *numbers, scales, traced_flag(allow_tf32))


def check_kinds(read: dict[str, object], written: dict[str, object]) -> None:
    """Refuse what is no tensor, by name. Every traced call begins here: Inductor is told of the operators first."""
    register()
    for operands, kind in ((read, "read"), (written, "written")):
        for name, x in operands.items():
            if not isinstance(x, torch.Tensor):
                refuse(refusal(kind, name, type(x), _entries(x)))


def _entries(x: object) -> str:
    """The entries of a tuple or list that a text tells apart: "tensors", "integers", or ""."""
    if not isinstance(x, (tuple, list)):
        return ""
    integers = True
    for each in x:
        if isinstance(each, torch.Tensor):
            return "tensors"
        integers = integers and isinstance(each, int)
    return "integers" if integers else ""


def refuse(text: str) -> None:
    """Raise OperandError with a text that is not empty. Under the compiler, from a fake kernel."""
    if text:
        _REFUSE(text)
        raise OperandError(text)


def refuse_unknown(function: Callable[..., object], names: Sequence[str]) -> NoReturn:
    """Raise TypeError for keywords that a function does not have. Under the compiler OperandError, by `refuse`."""
    if torch.compiler.is_dynamo_compiling():
        refuse(_unknown(function, names))
    raise unknown_argument(function, names)


def refuse_others(function: Callable[..., object], known: frozenset[str], names: Iterable[str]) -> None:
    """Refuse, under the compiler, keywords that are not known."""
    for name in names:
        if name not in known:
            refuse_unknown(function, tuple(names))


@constant_in_graphs
def _unknown(function: Callable[..., object], names: Sequence[str]) -> str:
    return str(unknown_argument(function, names))


def traced_flag(allow_tf32: object) -> bool | None:
    """`allow_tf32` of a call that is being traced; refuses anything but True, False and None."""
    if allow_tf32 is None or isinstance(allow_tf32, bool):
        return allow_tf32
    refuse(refusal("kind of flag", type(allow_tf32)) if isinstance(allow_tf32, torch.Tensor) else "")
    refuse(refusal("flag", allow_tf32))
    return bool(allow_tf32)


def check_number(name: str, x: object, whole: bool) -> None:
    """Refuse, under the compiler, what is no number of a launch. A symbol within 32 bits stays one."""
    if isinstance(x, torch.Tensor):
        refuse(f"{name} is a number, given at the launch; got a {type(x).__qualname__}")
    if isinstance(x, float) and not whole:
        return
    if not isinstance(x, int) or isinstance(x, bool):
        refuse(refusal("number", name, x, whole))
    elif not -(2**31) <= x < 2**31:
        refuse(refusal("number", name, int(x), whole))


@constant_of_objects
def refusal(check: str, *plain: object) -> str:
    """The text of a check's refusal of values that are no tensors, or "". A constant to the compiler."""
    try:
        CHECKS[check](*plain)
    except LayoutError as error:
        return str(error)
    return ""


def _stand_in(kind: type, entries: str = "") -> object:
    """Something of a class of that name; of a tuple or list, with such entries."""
    if kind in (tuple, list):
        return kind({"tensors": [torch.empty(0)], "integers": [0]}.get(entries, [None]))
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (), {**names, "__repr__": lambda self: f"a {kind.__name__}"})()


CHECKS: dict[str, Callable[..., object]] = {
    "activation": check_activation,
    "config": choice_of,
    "out_dtype": lambda multiplied, asked: multiplied in NAMES and stored_as(multiplied, asked),
    "flag": tf32_allowed,
    "kind of flag": lambda kind: tf32_allowed(_stand_in(kind)),
    "read": lambda name, kind, entries: check_operands({name: _stand_in(kind, entries)}),
    "written": lambda name, kind, entries: check_operands({}, {name: _stand_in(kind, entries)}),
    "number": lambda name, value, whole: host_number(name, value, whole),
    "scalar": lambda name, x, kind: scalar_of(name, x, kind, torch.device("cpu")),
}
