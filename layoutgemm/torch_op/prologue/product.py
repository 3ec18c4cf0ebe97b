"""A product of a function of a's elements, checked and computed now. A Hopper kernel does it, or float64 on the CPU.

The function is computed in float32 and rounded to a's type. A batch of one is a product of two matrices. Of no elements
of K the sums are 0, and bias and activation follow.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from ...arguments import shown
from ...errors import LayoutError, OperandError
from ...kernels.operands.prologue import TYPES as ROUNDED
from ...kernels.operands.prologue import Prologue, PrologueElement
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.choose.prologue import plan_with_prologue
from ...kernels.sm90.plan import Sm90Plan
from .. import tuned_store as tuned
from ..bias_activation import GATES, by_torch
from ..checks import check_call, check_finish, check_out, product_shape
from ..compute import finished_product
from ..operands.several import TorchMath, order_of
from ..prepared import Config, gpu, hopper_choice_of, on_gpu, start, target
from ..problem import bias_epilogue
from ..reference import exact
from ..scaled_grouped.kept import NOT_KEPT, launch
from ..types import C_NAMES, NAMES, READ, TYPES, GroupsPlan
from .apart import Ways, ways_of

# Why other arguments are refused beside a prologue.
ALONE = "a product with a prologue takes none; VectorScale('m') of an epilogue weighs rows"
KINDS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class PrologueProduct(NamedTuple):
    """activation(prologue(a) @ b + bias).

    given  the prologue's operands by name
    kind   the type of the result
    """

    a: torch.Tensor
    b: torch.Tensor
    prologue: Prologue
    given: Mapping[str, torch.Tensor]
    bias: torch.Tensor | None
    activation: str | None
    kind: torch.dtype

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors that it reads."""
        return self.a, self.b, self.bias, *self.given.values()

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape, whose sizes may be symbols."""
        return (*self.a.shape[:-1], self.b.shape[-1])


def checked_product(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor],
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, out_dtype: torch.dtype | None,
) -> PrologueProduct:  # fmt: skip
    """The product of a call. Raises OperandError or TensorError for operands that do not fit."""
    check_names(prologue, given, bias is not None)
    named = {"a": a, "b": b, **given, **({} if bias is None else {"bias": bias})}
    check_operands(named, {} if out is None else {"out": out})
    check_gate(activation)
    left, right, kind = check_call(a, b, activation, out_dtype, True)
    check_type(left)
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}: a prologue's sums are float32")
    batched = left.ndim == 3 and right.ndim == 3 and left.shape[0] == right.shape[0]
    if not batched and (left.ndim, right.ndim) != (2, 2):
        raise OperandError(
            f"prologue= is of two matrices, or of two batches of as many: not of shapes {list(left.shape)} and "
            f"{list(right.shape)}; expand() makes a batch"
        )
    shape = product_shape(left, right)
    check_finish(bias, activation, shape, kind)
    check_vectors(prologue, given, {"m": [left.shape[:-1]], "k": [(*left.shape[:-2], left.shape[-1])]})
    if out is not None:
        check_out(out, shape, kind, named)
    return PrologueProduct(left, right, prologue, given, bias, activation, kind)


def check_names(prologue: Prologue, given: Mapping[str, object], has_bias: bool) -> None:
    """Raise OperandError unless `given` has the prologue's operands by name, and no others."""
    if names := [name for name in (*prologue.names, *given) if (name in given) != (name in prologue.names)]:
        what = "is missing" if names[0] in prologue.names else "is no operand of it"
        raise OperandError(f"the prologue reads {', '.join(prologue.names) or 'no operands'}: {names[0]} {what}")
    if has_bias and "bias" in prologue.names:
        raise OperandError("bias is given, and the prologue reads an operand of that name: name it otherwise")


def check_type(a: torch.Tensor) -> None:
    """Raise OperandError for a type of A to which no kernel rounds a function's results."""
    if NAMES.get(a.dtype) not in ROUNDED:
        kinds = ", ".join(str(TYPES[name]).removeprefix("torch.") for name in ROUNDED)
        raise OperandError(f"a is {a.dtype}: a prologue is of {kinds}")


def order_for(x: torch.Tensor, usual: str) -> str:
    """The order in which a kernel reads a matrix. That of 8 bits is the usual one, K contiguous."""
    return usual if x.element_size() == 1 else order_of(x, usual)


def check_vectors(
    prologue: Prologue, given: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[Sequence[int]]]
) -> None:
    """Raise OperandError for an operand of another shape or type than the prologue reads.

    shapes  that an operand along "m" and one along "k" may have
    """
    for operand in prologue.operands:
        value, kind = given[operand.name], KINDS[operand.dtype.name]
        wanted = [list(shape) for shape in shapes[operand.axis]]
        if list(value.shape) not in wanted or value.dtype != kind:
            of, texts = "row" if operand.axis == "m" else "column", " or ".join(map(str, wanted))
            raise OperandError(
                f"{operand.name} is {value.dtype} of shape {list(value.shape)}: it takes {kind} of shape {texts}, one "
                f"for each {of} of a"
            )


PROLOGUE = "tcgen05 multiplies a as it lies in shared memory: compute the prologue's function of a first"


def check_config(config: Config | None) -> None:
    """Raise OperandError for a configuration of another class, and for one of the transposed product."""
    choice = hopper_choice_of(config, PROLOGUE)
    if choice is not None and choice.swapped:
        raise OperandError("config is of the transposed product (swapped), and a prologue is of A itself")


def check_gate(activation: object) -> None:
    """Raise OperandError for an activation that gates."""
    if activation in GATES:
        raise OperandError(
            f"activation {shown(activation)} with a prologue: plan(..., gated=) has it; others are not gates"
        )


def function_of(a: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """f(A) by torch in float32, rounded to A's type. It has derivatives where they are recorded.

    given  vectors, or a number for each element of A
    """
    x = a.float()
    rows = torch.arange(a.shape[-2], device=a.device)[:, None]
    columns = torch.arange(a.shape[-1], device=a.device)[None, :]
    read = [(operand, given[operand.name].float()) for operand in prologue.operands]
    values = {
        operand.name: value if value.ndim == a.ndim else value.unsqueeze(-1 if operand.axis == "m" else -2)
        for operand, value in read
    }
    math = TorchMath(x)
    found = math.tensor(prologue.apply(x, PrologueElement(rows, columns, values, math))).expand(a.shape)
    if a.element_size() == 1:  # a kernel saturates
        found = found.clamp(torch.finfo(a.dtype).min, torch.finfo(a.dtype).max)
    return found.to(a.dtype)


def computed(product: PrologueProduct, config: Config | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """A checked product, computed now; no derivative is recorded. Raises OperandError for a GPU without such kernels.

    >>> twice = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s, s="m")
    >>> x, s = torch.tensor([[-1.0, 2.0]]).half(), torch.tensor([3.0])
    >>> computed(PrologueProduct(x, torch.eye(2).half(), twice, {"s": s}, None, None, torch.float16))
    tensor([[0., 6.]], dtype=torch.float16)
    """
    with torch.no_grad():
        a, b = product.a.resolve_neg(), product.b.resolve_neg()
        given = {name: x.resolve_neg() for name, x in product.given.items()}
        bias = None if product.bias is None else product.bias.resolve_neg()
        product = product._replace(a=a, b=b, given=given, bias=bias)
        if 0 in (*product.shape, a.shape[-1]):
            sums = torch.zeros(product.shape, dtype=torch.float32, device=a.device)
        elif on_gpu(a.get_device()):
            return _launched(product, config, out)
        else:
            sums = exact(function_of(a, product.prologue, given), b).double()
        return _placed(by_torch(sums, bias, product.activation, product.kind), out)


# The product on a GPU without wgmma, by `torch_op.composed`, which imports this module.
BY_MMA_SYNC: list[Callable[[PrologueProduct, Config | None, torch.Tensor | None], torch.Tensor]] = []


def _placed(value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return value if out is None else out.copy_(value)


def _launched(product: PrologueProduct, config: Config | None, out: torch.Tensor | None) -> torch.Tensor:
    """One launch on the current stream of the operands' device."""
    a, b, _, given, bias, activation, kind = product
    code, _ = target(a.get_device())
    if code != "sm_90a":
        return BY_MMA_SYNC[0](product, config, out)
    if bias is not None and (bias.dtype not in READ or bias.stride(0) != 1):
        wide = _launched(product._replace(bias=None, activation=None, kind=torch.float32), config, None)
        return _placed(by_torch(wide, bias, activation, kind), out)
    chosen = plan_of_product(product, config)
    if (ways := ways_of_product(product, chosen)) is not None and ways.apart:
        return finished_product(function_of(a, product.prologue, given), b, bias, activation, kind, None, out)
    return launched(chosen.plan, a, b, given, {}, bias, out, a.ndim > 2 and a.shape[0] == 1)


def launched(
    plan: GroupsPlan, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, torch.Tensor],
    tables: Mapping[str, torch.Tensor], bias: torch.Tensor | None, out: torch.Tensor | None, one: bool,
) -> torch.Tensor:  # fmt: skip
    """One launch of a plan.

    tables  of groups, by name
    one     a batch, or groups with matrices of C of their own, of one: the kernel is that of two matrices
    """
    into = out
    if one:
        a, b = [x if x.ndim == 2 else x[0] for x in (a, b)]
        into = None if out is None else out[0]
        given = {name: value if value.ndim == 1 else value[0] for name, value in given.items()}
        bias = bias if bias is None or bias.ndim == 1 else bias[0]
    given = {name: value if value.stride(-1) == 1 else value.contiguous() for name, value in given.items()}
    c = launch(NOT_KEPT, plan, a, b, {**tables, **given}, {} if bias is None else {"bias": bias}, into)
    if out is not None:
        return out
    return c.unsqueeze(0) if one else c


class ChosenPlan(NamedTuple):
    """The plan that a product's kernel is compiled from, and why. `estimated`: by no caller and no measurement."""

    plan: Sm90Plan
    why: str
    estimated: bool = False


def ways_of_product(product: PrologueProduct, chosen: ChosenPlan) -> Ways | None:
    """Both ways of a function of A. None where a caller's configuration, or a measured one, says which."""
    if not chosen.estimated:
        return None
    room, _ = gpu(product.a.get_device())
    return ways_of(chosen.plan, product.prologue, room.multiprocessors)


def plan_of_product(product: PrologueProduct, config: Config | None) -> ChosenPlan:
    """The plan of a product; that of an H200 for CPU tensors."""
    a, b, prologue, _, bias, activation, kind = product
    choice = hopper_choice_of(config, PROLOGUE)
    names = f"{NAMES[a.dtype]}:{order_for(a, 'row')}", f"{NAMES[b.dtype]}:{order_for(b, 'col')}", C_NAMES[kind]
    sizes = a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if a.ndim > 2 else 1
    pairs = product.b.shape[-1] % 2 == 0 and (bias is None or start(bias) == 16)
    of_bias = None if bias is None else C_NAMES[bias.dtype]
    epilogue = None if of_bias is None and activation is None else bias_epilogue(of_bias, activation, pairs)
    room, name = gpu(a.get_device())
    derive = functools.partial(plan_with_prologue, sizes, names, prologue, epilogue)
    if choice is not None:
        return ChosenPlan(derive(choice.config, room.multiprocessors), "config= is the caller's")
    orders = tuple([text.rpartition(":")[2] for text in (*names[:2], "row")])
    kinds = NAMES[a.dtype], NAMES[b.dtype], names[2]
    measured = tuned.lookup(name, sizes, tuned_types(prologue, kinds), orders)
    if measured is not None and not measured.swapped:
        with contextlib.suppress(LayoutError):  # a result that does not fit is passed over
            return ChosenPlan(derive(measured.config, room.multiprocessors), "measured by layoutgemm.tune")
    plan = derive(None, room.multiprocessors)
    return ChosenPlan(plan, f"{plan.tile_c} tiles take least time (an estimate)", True)


def tuned_types(prologue: Prologue, types: tuple[str, ...]) -> tuple[str, ...]:
    """The types by which a product with a prologue is kept: A's says the function.

    >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
    >>> tuned_types(relu, ("bf16", "bf16", "bf16"))[0].rpartition(" ")[0]
    'bf16 by a function'
    """
    digest = hashlib.sha256(prologue.to_json().encode()).hexdigest()[:16]
    return f"{types[0]} by a function {digest}", *types[1:]
