"""torch.ops.layoutgemm.quantize and its like: as torch's compiler, autograd and functorch see them.

They have no derivatives: rounding has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...arguments import shown
from ...errors import OperandError, TensorError
from ...kernels.alignment import address_misfit
from ...kernels.run.operand_checks import addressed, check_operands
from ..checks import check_device, differentiated, has_tangent
from ..compiled.traced import CHECKS, checking_operator
from ..operators import VmapInfo, operator_of, with_autograd
from ..scaled_grouped.recipes import BLOCK, recipe_text
from ..types import READ, listed
from .launch import Pair, QuantizeOptions, QuantizeRequest, computed, computed_both, computed_together, empty_results

WAY_OUT = "use torch.no_grad(), or give its detach()"
_VALUES = (torch.float8_e4m3fn, torch.float8_e5m2)
_MAJORS = ("mn", "k")
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def options_of(recipe: object, dtype: object, power_of_two: object, scale_major: object) -> QuantizeOptions:
    """The options of a call. Raises OperandError, naming the option."""
    name = recipe_text("recipe", recipe) or BLOCK
    if dtype is None:
        dtype = _VALUES[0]
    if not isinstance(dtype, torch.dtype) or dtype not in _VALUES:
        raise OperandError(f"dtype {shown(dtype)}: float8_e4m3fn or float8_e5m2")
    if not isinstance(power_of_two, bool):
        raise OperandError(f"power_of_two = {shown(power_of_two)}: True or False")
    if not isinstance(scale_major, str) or scale_major not in _MAJORS:
        raise OperandError(f"scale_major {shown(scale_major)}: 'mn', scales of neighbouring rows together, or 'k'")
    return QuantizeOptions(name, dtype, power_of_two, scale_major)


def check_quantized(x: torch.Tensor) -> None:
    """Raise OperandError or TensorError for a tensor that is not quantised."""
    check_operands({"x": x})
    if x.device.type not in ("cuda", "cpu", "meta"):
        check_device(x)
    if differentiated(x):
        what = "has a tangent" if has_tangent(x) else "requires grad"
        raise TensorError(f"x {what}, and quantize has no gradient: {WAY_OUT}")
    if x.dtype not in READ:
        raise OperandError(f"x is {x.dtype}: quantize takes {listed(READ)}")
    if x.ndim < 2:
        raise TensorError(f"x has shape {list(x.shape)}: (..., M, K), rows of K elements that are summed over")
    if addressed(x) and (rule := address_misfit(x.data_ptr(), x.element_size())):
        raise OperandError(f"x: {rule}; x.clone() is")


def _call(
    x: torch.Tensor, recipe: str = BLOCK, dtype: torch.dtype | None = None, power_of_two: bool = False,
    scale_major: str = "mn",
) -> tuple[torch.Tensor, QuantizeOptions]:  # fmt: skip
    asked = options_of(recipe, dtype, power_of_two, scale_major)
    check_quantized(x)
    return x, asked


def _quantize_mapped(
    info: object, in_dims: Sequence[int | None], x: torch.Tensor, *options: object
) -> tuple[Pair, tuple[int, int]]:
    """The mapped dimension comes in front: matrices of a batch have scales of their own."""
    at = in_dims[0]
    assert at is not None  # what else is mapped is no tensor
    return torch.ops.layoutgemm.quantize(x.movedim(at, 0), *options), (0, 0)


def _both_call(
    x: torch.Tensor, dtype: torch.dtype | None = None, power_of_two: bool = False, scale_major: str = "mn"
) -> tuple[torch.Tensor, QuantizeOptions]:
    return _call(x, BLOCK, dtype, power_of_two, scale_major)


def _both(x: torch.Tensor, asked: QuantizeOptions) -> Four:
    (values, scales), (turned, of_turned) = computed_both(x, asked)
    return values, scales, turned, of_turned


def _both_empty(x: torch.Tensor, asked: QuantizeOptions) -> Four:
    return *empty_results(x, tuple(x.shape), asked), *empty_results(x, tuple(x.mT.shape), asked)


def _both_mapped(
    info: object, in_dims: Sequence[int | None], x: torch.Tensor, *options: object
) -> tuple[Four, tuple[int, int, int, int]]:
    """As of `quantize`."""
    at = in_dims[0]
    assert at is not None
    return torch.ops.layoutgemm.quantize_both(x.movedim(at, 0), *options), (0, 0, 0, 0)


operator_of(
    "quantize", _call, computed, lambda x, asked: empty_results(x, tuple(x.shape), asked), mapped=_quantize_mapped,
    returns=Pair,
)  # fmt: skip
operator_of("quantize_both", _both_call, _both, _both_empty, mapped=_both_mapped, returns=Four)


def _together_call(xs: Sequence[torch.Tensor], recipes: str, both: Sequence[bool]) -> tuple[list[QuantizeRequest]]:
    """`recipes`: of each tensor, with commas between: a schema has no list of texts."""
    names = recipes.split(",")
    if not len(xs) == len(names) == len(both):
        raise OperandError(f"xs, recipes and both have {len(xs)}, {len(names)} and {len(both)} entries: one each")
    return ([QuantizeRequest(*_call(x, recipe), twice) for x, recipe, twice in zip(xs, names, both)],)


def _together(requests: list[QuantizeRequest]) -> list[torch.Tensor]:
    found = computed_together(requests)
    pairs: Iterable[Pair] = found if found is not None else [
        pair for x, asked, twice in requests
        for pair in (computed_both(x, asked) if twice else [computed(x, asked)])
    ]  # fmt: skip
    return [part for pair in pairs for part in pair]


def _together_empty(requests: list[QuantizeRequest]) -> list[torch.Tensor]:
    forms = [(x, shape, asked) for x, asked, twice in requests for shape in (x.shape, x.mT.shape)[: 1 + twice]]
    return [part for x, shape, asked in forms for part in empty_results(x, tuple(shape), asked)]


def _together_mapped(
    info: VmapInfo, in_dims: tuple[Sequence[int | None], object, object], xs: Sequence[torch.Tensor], *options: object
) -> tuple[list[torch.Tensor], list[int]]:
    """As of `quantize`; what is not mapped is quantised for each."""
    mapped = [x.expand(info.batch_size, *x.shape) if at is None else x.movedim(at, 0) for x, at in zip(xs, in_dims[0])]
    made = torch.ops.layoutgemm.quantize_together(mapped, *options)
    return made, [0] * len(made)


operator_of(
    "quantize_together", _together_call, _together, _together_empty, mapped=_together_mapped,
    returns=list[torch.Tensor],
)  # fmt: skip


def _underived(x: torch.Tensor, *others: object) -> Pair:
    check_quantized(x)
    raise OperandError("x: torch.ops.layoutgemm.quantize and its like have no derivatives")


with_autograd("quantize", _underived)
with_autograd("quantize_both", _underived)
with_autograd("quantize_together", lambda xs, *others: _underived(*[x for x in xs if differentiated(x)][:1]))
CHECK_QUANTIZE = checking_operator("check_quantize", check_quantized)
CHECKS["quantize"] = options_of
