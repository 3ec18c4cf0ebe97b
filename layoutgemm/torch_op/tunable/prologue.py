"""A product with a prologue as `layoutgemm.tune` measures it: candidates, operands, a call, its error.

A result is kept for the function itself, by its text: another function costs otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.operands.prologue import Prologue
from ...kernels.run.error_bound import rounded_error, sum_error
from ...kernels.sm90.choose.prologue import plan_with_prologue, prologue_candidates
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.plan import Sm90Plan
from ..api import matmul
from ..prologue.product import KINDS, function_of, tuned_types
from .product import ProductSizes, check_alone

_TILES = {(128, 256): 2, (128, 192): 2, (128, 128): 2, (192, 128): 3, (256, 128): 2, (64, 256): 1, (64, 128): 1,
          (64, 64): 1}  # fmt: skip
_CLUSTERS = ((1, 1), (2, 1), (1, 2))
_FUNCTION_ERROR = 2.0**-5  # of a term: an approximated function may round to a neighbour; K of random sign


class PrologueOperands(NamedTuple):
    """Operands of one product, and where it goes."""

    a: torch.Tensor
    b: torch.Tensor
    given: dict[str, torch.Tensor]
    out: torch.Tensor


@dataclass(frozen=True)
class TunablePrologue(ProductSizes):
    """A product with a prologue."""

    prologue: Prologue

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        return tuned_types(self.prologue, self.types), self.orders

    def plan(self, choice: Sm90Choice) -> Sm90Plan:
        """The plan of a candidate. Raises LayoutError where none can be derived."""
        of = self.places.multiprocessors
        return plan_with_prologue(self.sizes, self.operand_specs, self.prologue, None, choice.config, of)

    def candidates(self) -> Iterator[Sm90Choice]:
        """Configurations that could be the fastest, the default first.

        >>> relu = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
        >>> found = TunablePrologue(4096, 4096, 4096, "bf16", "k", "k", relu).candidates()
        >>> [choice.config.tile for choice in found][:4]
        [(128, 256), (128, 256), (64, 256), (64, 256)]
        """
        seen = list(prologue_candidates(*self.sizes, self.places.multiprocessors))
        for tile, consumers in _TILES.items():
            for loader in ("warpgroup", "warp" if consumers == 1 else "self"):
                for cluster in _CLUSTERS:
                    config = Sm90Config(tile, consumers=consumers, loader=loader, cluster=cluster, chunks=1)
                    seen.append(config)
                    seen.append(config.tuned(buffers=2))
        yield from [Sm90Choice(config) for config in dict.fromkeys(seen)]

    def operands(self) -> PrologueOperands:
        """Random normal matrices and vectors of 0.5 to 1.5 on the current GPU."""
        a, b = self.factors()
        given = {}
        for operand in self.prologue.operands:
            values = torch.rand(operand.shape(self.m, self.k), device=a.device) + 0.5
            given[operand.name] = values.to(KINDS[operand.dtype.name])
        return PrologueOperands(a, b, given, torch.empty(self.m, self.n, device=a.device, dtype=a.dtype))

    def call(self, on: PrologueOperands, choice: Sm90Choice | None) -> torch.Tensor:
        """The product into its output."""
        config = None if choice is None else choice.config
        return matmul(on.a, on.b, prologue=self.prologue, given=on.given, out=on.out, config=config)

    def by_torch(self) -> None:
        """torch has no such product."""

    def off(self, on: PrologueOperands) -> float:
        """The largest error of a set's output, in units of the error bound."""
        computed, b = function_of(on.a, self.prologue, on.given).double(), on.b.double()
        want, terms = computed @ b, computed.abs() @ b.abs()
        bound = (sum_error(dtype(self.dtype).bits, self.k) + _FUNCTION_ERROR / self.k**0.5) * terms
        bound = rounded_error(bound, want, dtype(self.dtype)) + 1e-6
        return float(((on.out.double() - want).abs() / bound).max())


def tunable_prologue(
    sizes: tuple[int, int, int], of: str, majors: tuple[str, str], prologue: object, others: Mapping[str, object]
) -> TunablePrologue:
    """The product that is to be tuned. Raises OperandError for other functions, and for arguments beside it.

    others  arguments of other products, as `check_alone` has them
    """
    if not isinstance(prologue, Prologue):
        raise OperandError(f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of")
    check_alone("prologue", others)
    return TunablePrologue(*sizes, of, *majors, prologue)
