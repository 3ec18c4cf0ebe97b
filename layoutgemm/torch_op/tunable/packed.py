"""A product with packed weights as `layoutgemm.tune` measures it: candidates, operands, a call, its error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...arguments import shown
from ...errors import OperandError
from ...kernels.plan import GemmPlan
from ...kernels.quantized.formats import QuantizedFormat
from ...kernels.quantized.packing import check_activations, check_k
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.quantized.choose import packed_candidates, packed_parts, parts_candidates
from ...kernels.sm90.quantized.feature_parts import FeatureParts, PartsChoice
from ...kernels.streamed.choose import StreamedChoice, streamed_candidates
from ...kernels.streamed.plan import StreamedConfig
from ..prepared import gpu, target
from ..quantized.launch import ORDERS, QuantizedCall, plans_of, quantized_product, streamed_plan_of
from ..quantized.weights import QuantizedWeight
from ..tuned_store import Choice, packed_types
from ..types import TYPES
from .product import check_alone

_BLOCK = 1024  # rows of weights that are quantised; taller weights repeat them


class PackedOperands(NamedTuple):
    """One set: x, the weights, where the product goes."""

    x: torch.Tensor
    weight: QuantizedWeight
    out: torch.Tensor


@dataclass(frozen=True)
class TunablePacked:
    """A product of m rows of x with packed weights (n, k).

    dtype    of x and of the product: "bf16" or "f16"
    weights  the format
    """

    m: int
    n: int
    k: int
    dtype: str
    weights: QuantizedFormat

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K, and one matrix."""
        return self.m, self.n, self.k, 1

    @property
    def bytes_as_k(self) -> int:
        """The K of 16-bit weights that are as many bytes."""
        return max(1, self.k * self.weights.bits // 16)

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        return packed_types(self.dtype, str(self.weights)), ORDERS

    def plan(self, choice: Choice | None) -> GemmPlan:
        """The first plan of a candidate, or of the default. Raises LayoutError where one cannot be derived."""
        index = torch.cuda.current_device() if torch.cuda.is_available() else -1
        call, sms = self._call(choice), gpu(index)[0].multiprocessors
        streamed = streamed_plan_of(call, self.m, self.dtype, None, sms, *target(index))
        return streamed if streamed is not None else plans_of(call, self.m, self.dtype, None, sms)[0][1]

    def _call(self, choice: Choice | None) -> QuantizedCall:
        config = None if choice is None else choice.config
        return QuantizedCall(self.weights, (self.n, self.k), None, TYPES[self.dtype], config)

    def candidates(self) -> Iterator[Choice]:
        """Configurations that could be the fastest, the default first.

        >>> one = TunablePacked(1, 4096, 4096, "bf16", QuantizedFormat("int4", 128))
        >>> [type(choice).__name__ for choice in one.candidates()][::40]
        ['StreamedChoice', 'Sm90Choice']
        """
        own, sizes = self.plan(None).config, (self.n, self.m, self.k)
        parts = packed_parts(*sizes, weights=self.weights)
        first: Choice = StreamedChoice(own) if isinstance(own, StreamedConfig) else Sm90Choice(own)
        if parts and not isinstance(own, StreamedConfig):
            first = PartsChoice(FeatureParts(parts))
        cuts = [PartsChoice(FeatureParts(each)) for each in parts_candidates(*sizes, weights=self.weights)]
        kinds: list[list[Choice]] = [
            [StreamedChoice(config) for config in streamed_candidates(self.m)],
            [Sm90Choice(config) for config in packed_candidates(*sizes, weights=self.weights)],
        ]
        kinds.sort(key=lambda kind: not isinstance(first, type(kind[0])) if kind else True)
        yield from dict.fromkeys([first, *cuts, *kinds[0], *kinds[1]])

    def operands(self) -> PackedOperands:
        """Random normal x and weights on the current GPU."""
        kind = TYPES[self.dtype]
        block = torch.randn(min(self.n, _BLOCK), self.k, device="cuda")
        dense = block.repeat(-(-self.n // len(block)), 1)[: self.n]
        weight = QuantizedWeight.quantize(dense, self.weights, kind)
        x = torch.randn(self.m, self.k, device="cuda").to(kind)
        return PackedOperands(x, weight, torch.empty(self.m, self.n, device="cuda", dtype=kind))

    def call(self, on: PackedOperands, choice: Choice | None) -> torch.Tensor:
        """The product into its output."""
        return quantized_product(self._call(choice), on.x, on.weight.units, on.weight.scales, None, None, on.out)

    def by_torch(self) -> None:
        """torch has no such product of these weights."""

    def off(self, on: PackedOperands) -> float:
        """The largest error of a set's output, in units of the error bound.

        Scales of groups multiply sums, or weights are rounded first: right is within the bound of either.
        """
        dense, wide, found = on.weight.dense(torch.float64), on.x.double(), []
        for weights in (dense, dense.to(on.x.dtype).double()):
            want = wide @ weights.T
            bound = torch.finfo(on.x.dtype).eps * want.abs() + 2.0**-17 * (wide.abs() @ weights.abs().T) + 1e-6
            share = (on.out.double() - want).abs() / bound
            found.append(float(share.nan_to_num(nan=torch.inf).max()))
        return min(found)


def tunable_packed(
    sizes: tuple[int, int, int], dtype: str, weights: object, others: Mapping[str, object]
) -> TunablePacked:
    """The product that is to be tuned. Raises OperandError for other weights, and for arguments beside them.

    others  arguments of other products, as `check_alone` has them
    """
    if not isinstance(weights, QuantizedFormat):
        raise OperandError(f"weights is {shown(weights)}: a QuantizedFormat")
    check_alone("weights", others)
    if dtype not in ("bf16", "f16"):
        raise OperandError(f"dtype {shown(dtype)}: packed weights are tuned for x of 'bf16' or 'f16'")
    check_activations(weights, dtype)
    check_k(weights, sizes[2])
    return TunablePacked(*sizes, dtype, weights)
