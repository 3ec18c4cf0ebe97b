"""matmul(a, b, prologue=...): a function of a's elements before they are multiplied, in the kernel's registers.

    norm = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
    matmul(x, w, prologue=norm, given={"rstd": rstd, "w": gamma})          RMSNorm(x) @ w, without a normalised copy

The function is computed in float32 and rounded to a's type, on the CPU too; there the product is in float64. Where
derivatives are recorded, torch computes the function and derives it, and the product is `matmul`'s own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch

from ...errors import LayoutError, OperandError
from ...kernels.epilogue.chain import Activation, Bias, Epilogue
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.choose.prologue import prologue_config
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.operands.prologue import Prologue, PrologueElement
from ...kernels.sm90.plan import Sm90Plan
from ..bias_activation import GATES, by_torch
from ..checks import check_call, check_finish, check_out, differentiated, needs_dispatcher, product_shape, refuse_traces
from ..compiled.kept_launches import again_or
from ..ordered import order_of
from ..prepared import Config, choice_of, gpu, on_gpu, target
from ..reference import exact
from ..scaled_grouped.kept import NOT_KEPT, launch
from ..types import C_NAMES, NAMES, READ
from .several import TorchMath

_KINDS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_NOT_DISPATCHED = (
    "prologue= is a launch of its own: not under torch.compile, torch.func or a mode, nor of fake tensors or tensor "
    "subclasses"
)


def prologue_product(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor], *,
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, config: Config | None,
    out_dtype: torch.dtype | None, multiply: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """activation(prologue(a) @ b + bias): see the module's docstring, and `torch_op.matmul`.

    multiply  `matmul`, with its gradients

    Raises OperandError for vectors, batches that broadcast, operands that do not fit, types other than bfloat16 and
    float16, and a GPU without such kernels. PlanError for a prologue that no kernel has.

    >>> x = torch.tensor([[-1.0, 2.0]]).half()
    >>> twice = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s, s="m")
    >>> nothing = dict.fromkeys(("bias", "activation", "out", "config", "out_dtype", "multiply"))
    >>> prologue_product(x, torch.eye(2).half(), twice, {"s": torch.tensor([3.0])}, **nothing)
    tensor([[0., 6.]], dtype=torch.float16)
    """
    if not isinstance(prologue, Prologue):
        raise OperandError(f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of")
    if not isinstance(given, Mapping):
        raise OperandError(f"given is a {type(given).__qualname__}; it is a dict, the prologue's operands by name")

    def make() -> torch.Tensor:
        refuse_traces("prologue=")
        left, right, kind = _checked(a, b, prologue, given, bias, activation, out, config, out_dtype)
        if differentiated(left, right, bias, *given.values()):
            return _by_torch(multiply, left, right, prologue, given, bias, activation, out, config, kind)
        with torch.no_grad():
            if needs_dispatcher(left, right, bias, out, *given.values()):
                raise OperandError(_NOT_DISPATCHED)
            left, right = left.resolve_neg(), right.resolve_neg()
            if on_gpu(left.get_device()):
                return _launched(left, right, prologue, given, bias, activation, out, config, kind)
            value = by_torch(exact(_function(left, prologue, given), right).double(), bias, activation, kind)
            return value if out is None else out.copy_(value)

    options = ("matmul, prologue=", prologue, activation, config, out_dtype)
    return again_or(make, options, {"a": a, "b": b, **given, "bias": bias}, out)


def _checked(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor],
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, config: Config | None,
    out_dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:  # fmt: skip
    """A and B with one type, and the result's; raises as `prologue_product` does."""
    if names := [name for name in (*prologue.names, *given) if (name in given) != (name in prologue.names)]:
        what = "is missing" if names[0] in prologue.names else "is no operand of it"
        raise OperandError(f"the prologue reads {', '.join(prologue.names) or 'no operands'}: {names[0]} {what}")
    if bias is not None and "bias" in prologue.names:
        raise OperandError("bias is given, and the prologue reads an operand of that name: name it otherwise")
    named = {"a": a, "b": b, **given, **({} if bias is None else {"bias": bias})}
    check_operands(named, {} if out is None else {"out": out})
    choice = choice_of(config)
    if choice is not None and choice.swapped:
        raise OperandError("config is of the transposed product (swapped), and a prologue is of A itself")
    if activation in GATES:
        raise OperandError(f"activation {activation!r} with a prologue: plan(..., gated=) has it; others are not gates")
    left, right, kind = check_call(a, b, activation, out_dtype, True)
    if left.dtype not in (torch.bfloat16, torch.float16):
        raise OperandError(f"a is {left.dtype}: a prologue is of bfloat16 or float16")
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}: a prologue's sums are float32")
    if left.ndim not in (2, 3) or left.ndim != right.ndim or left.shape[:-2] != right.shape[:-2]:
        raise OperandError(
            f"prologue= is of two matrices, or of two batches of as many: not of shapes {list(left.shape)} and "
            f"{list(right.shape)}; expand() makes a batch"
        )
    shape = product_shape(left, right)
    if 0 in (*shape, left.shape[-1]):
        raise OperandError(f"prologue= of a product of shape {list(shape)} over K = {left.shape[-1]}: no size may be 0")
    check_finish(bias, activation, shape, kind)
    for operand in prologue.operands:
        value = given[operand.name]
        want = (*left.shape[:-2], left.shape[-2 if operand.axis == "m" else -1])
        if tuple(value.shape) != want or value.dtype != _KINDS[operand.dtype.name]:
            of = "row" if operand.axis == "m" else "column"
            raise OperandError(
                f"{operand.name} is {value.dtype} of shape {list(value.shape)}: it takes {_KINDS[operand.dtype.name]} "
                f"of shape {list(want)}, one for each {of} of a"
            )
    if out is not None:
        check_out(out, shape, kind, {"a": left, "b": right})
    return left, right, kind


def _function(a: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """f(A) by torch in float32, rounded to A's type; with derivatives where they are recorded."""
    x = a.float()
    rows = torch.arange(a.shape[-2], device=a.device)[:, None]
    columns = torch.arange(a.shape[-1], device=a.device)[None, :]
    values = {
        operand.name: given[operand.name].float().unsqueeze(-1 if operand.axis == "m" else -2)
        for operand in prologue.operands
    }
    found = torch.as_tensor(prologue.apply(x, PrologueElement(rows, columns, values, TorchMath(x))))
    return found.expand(a.shape).to(a.dtype)


def _by_torch(
    multiply: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor, prologue: Prologue,
    given: Mapping[str, torch.Tensor], bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None,
    config: Config | None, kind: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The function by torch, which derives it, and the product with its own gradients."""
    computed = _function(a, prologue, given)
    return multiply(computed, b, bias=bias, activation=activation, out=out, config=config, out_dtype=kind)


def _launched(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor],
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, config: Config | None,
    kind: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """One launch on the current stream of the operands' device."""
    code, _ = target(a.get_device())
    if code != "sm_90a":
        raise OperandError(
            f"{a.device} runs {code}: a prologue needs wgmma with A in registers, compute capability 9.0"
        )
    if bias is not None and (bias.dtype not in READ or bias.stride(0) != 1):
        wide = _launched(a, b, prologue, given, None, None, None, config, torch.float32)
        value = by_torch(wide, bias, activation, kind)
        return value if out is None else out.copy_(value)
    choice = choice_of(config)
    names = f"{NAMES[a.dtype]}:{order_of(a, 'row')}", f"{NAMES[b.dtype]}:{order_of(b, 'col')}", C_NAMES[kind]
    batch = a.shape[0] if a.ndim > 2 else 1
    sizes = a.shape[-2], b.shape[-1], a.shape[-1], batch
    finish = None if bias is None else C_NAMES[bias.dtype], activation
    places = gpu(a.get_device())[0].multiprocessors
    plan = plan_with_prologue(sizes, names, prologue, finish, None if choice is None else choice.config, places)
    one = a.ndim > 2 and batch == 1  # a batch of one is a product of two matrices
    if one:
        a, b, out_of = a[0], b[0], None if out is None else out[0]
        given = {name: value[0] for name, value in given.items()}
    else:
        out_of = out
    given = {name: value if value.stride(-1) == 1 else value.contiguous() for name, value in given.items()}
    c = launch(NOT_KEPT, plan, a, b, given, {} if bias is None else {"bias": bias}, out_of)
    if out is not None:
        return out
    return c.unsqueeze(0) if one else c


@lru_cache(maxsize=1024)
def plan_with_prologue(
    sizes: tuple[int, int, int, int], names: tuple[str, str, str], prologue: Prologue,
    finish: tuple[str | None, str | None], config: Sm90Config | None, places: int,
) -> Sm90Plan:  # fmt: skip
    """The plan of these sizes, with a bias of that type and an activation.

    >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
    >>> plan_with_prologue((512, 512, 512, 1), ("bf16", "bf16:col", "bf16"), relu, (None, None), None, 132).tile
    (64, 64, 64)
    """
    (m, n, k, batch), (a, b, c), (bias, activation) = sizes, names, finish
    steps = [*([] if bias is None else [Bias(bias)]), *([] if activation is None else [Activation(activation)])]
    epilogue = Epilogue(*steps) if steps else None
    first = prologue_config(m, n, k, batch, places) if config is None else config
    spare = Sm90Config((64, 64), consumers=1, loader="warp")  # of every order and every result
    refused: LayoutError | None = None
    for each in (first,) if config is not None else (first, spare):
        try:
            return Sm90Plan.derive(
                m, n, k, batch=batch, a=a, b=b, c=c, config=each, epilogue=epilogue, prologue=prologue
            )  # fmt: skip
        except LayoutError as error:
            refused = refused or error
    assert refused is not None
    raise refused
