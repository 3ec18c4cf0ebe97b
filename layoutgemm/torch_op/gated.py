"""torch.ops.layoutgemm.gated: gated products as torch's compiler and modes see them.

    gated(Tensor a, Tensor b, str activation, ScalarType out_dtype, str config="", bool? allow_tf32=None) -> Tensor

    b: (K, 2n) = [gate | up]          C = act(a @ gate) * (a @ up), of n columns

a and b have two dimensions or more, and nothing is differentiated. The kernel takes a K-major b, and stores floats.
Otherwise the product of all 2n columns is written in float32, and torch gates it.
"""

from __future__ import annotations

import torch

from ..errors import OperandError
from ..kernels.run.operand_checks import check_operands
from ..moved import old_names
from .bias_activation import GATES
from .checks import check_gated_type, check_matrices, fake_shape, output_type
from .compute import gated_product
from .library import aligned, configured, with_autograd
from .problem import half

__getattr__ = old_names(__name__)


@torch.library.custom_op("layoutgemm::gated", mutates_args=())
def _gated(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    kind = _check_gated(a, b, activation, out_dtype, allow_tf32)
    return gated_product(a, b, None, activation, kind, configured(config))


def _check_gated(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, allow_tf32: bool | None
) -> torch.dtype:
    check_operands({"a": a, "b": b})
    check_matrices(a, b, allow_tf32)
    if activation not in GATES:
        raise OperandError(f"activation {activation!r}: of gated products known are {', '.join(map(repr, GATES))}")
    kind = output_type(a, b, out_dtype)
    check_gated_type(kind)
    return kind


@_gated.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    kind = _check_gated(a, b, activation, out_dtype, allow_tf32)
    configured(config)
    *front, n = fake_shape(a, b)
    return a.new_empty((*front, half(b.ndim, n)), dtype=kind)


def _underived(a: torch.Tensor, b: torch.Tensor, *others: object) -> torch.Tensor:
    raise OperandError("torch.ops.layoutgemm.gated has no derivative; matmul(a, b, activation=) has")


with_autograd("gated", _underived)


@_gated.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, activation: str,
    out_dtype: torch.dtype, config: str = "", allow_tf32: bool | None = None,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    return torch.ops.layoutgemm.gated(*aligned(in_dims, a, b), activation, out_dtype, config, allow_tf32), 0


def gated_operator(
    a: torch.Tensor, b: torch.Tensor, activation: str, kind: torch.dtype, config: str
) -> torch.Tensor:
    """The operator on an a of any rank, of operands that have been checked."""
    value = torch.ops.layoutgemm.gated(a.unsqueeze(0) if a.ndim == 1 else a, b, activation, kind, config, True)
    return value.squeeze(-2) if a.ndim == 1 else value
