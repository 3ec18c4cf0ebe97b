"""A product of two matrices as `layoutgemm.tune` measures it: candidates, operands, a call, its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.sm90.choose.candidates import candidates
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.plan import Sm90Plan
from ..api import matmul
from ..prepared import gpu
from ..types import TYPES

# Arguments of `layoutgemm.tune` for one kind of product or another, and their defaults.
USUAL: dict[str, object] = {
    "recipe_a": None, "recipe_b": None, "groups": None, "activation": None, "form": "rows", "use_fast_accum": True,
}  # fmt: skip


@dataclass(frozen=True)
class ProductSizes:
    """M, N and K, type and orders of a product of two matrices.

    dtype             of A, B and C: "bf16" or "f16"
    a_major, b_major  as `layoutgemm.tune` has them
    """

    m: int
    n: int
    k: int
    dtype: str
    a_major: str
    b_major: str

    @property
    def orders(self) -> tuple[str, str, str]:
        """Orders of A, B and C."""
        return "row" if self.a_major == "k" else "col", "col" if self.b_major == "k" else "row", "row"

    @property
    def types(self) -> tuple[str, ...]:
        """Types of A, B and C."""
        return (self.dtype,) * 3

    @property
    def operand_specs(self) -> tuple[str, str, str]:
        """A, B and C, as a plan takes them.

        >>> ProductSizes(64, 64, 64, "bf16", "k", "mn").operand_specs
        ('bf16:row', 'bf16:row', 'bf16:row')
        """
        a, b, c = (f"{name}:{order}" for name, order in zip(self.types, self.orders, strict=True))
        return a, b, c

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K, and one matrix."""
        return self.m, self.n, self.k, 1

    @property
    def places(self) -> ClusterOccupancy:
        """The cluster occupancy of the current GPU, or an H200's without one."""
        return gpu(torch.cuda.current_device() if torch.cuda.is_available() else -1)[0]

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random normal A and B on the current GPU."""
        kind = TYPES[self.dtype]
        a, b = (torch.randn(shape, device="cuda").to(kind) for shape in ((self.m, self.k), (self.k, self.n)))
        return a if self.a_major == "k" else a.T.contiguous().T, b.T.contiguous().T if self.b_major == "k" else b


class TunableMatmul(ProductSizes):
    """A product of `matmul` of two matrices alone."""

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        return self.types, self.orders

    @property
    def steps(self) -> Epilogue | None:
        """The epilogue of the kernel: none."""
        return None

    def plan(self, choice: Sm90Choice) -> Sm90Plan:
        """The plan of a candidate. Raises LayoutError where none can be derived."""
        a, b, c = self.operand_specs
        return choice.plan(self.m, self.n, self.k, a=a, b=b, c=c)

    def candidates(self) -> Iterator[Sm90Choice]:
        """Configurations that could be the fastest, the default first."""
        return candidates(self.m, self.n, self.k, self.a_major, self.b_major, self.places)

    def operands(self) -> tuple[torch.Tensor, ...]:
        """A, B, and where C goes, on the current GPU."""
        a, b = self.factors()
        return a, b, torch.empty(self.m, self.n, device=a.device, dtype=a.dtype)

    def call(self, on: tuple[torch.Tensor, ...], choice: Sm90Choice | None) -> torch.Tensor:
        """The product into its output."""
        return matmul(on[0], on[1], out=on[2], config=choice)

    def by_torch(self) -> Callable[[tuple[torch.Tensor, ...]], object]:
        """torch's product of the same operands."""
        return lambda on: torch.matmul(on[0], on[1], out=on[2])

    def off(self, on: tuple[torch.Tensor, ...]) -> float:
        """The largest error of a set's output, in units of the error bound."""
        a, b, c = on
        want = a.double() @ b.double()
        return float(((c.double() - want).abs() / (want.abs() * 2.0**-7 + 2.0**-7 * self.k**0.5)).max())


def check_alone(function: str, others: Mapping[str, object]) -> None:
    """Raise OperandError for arguments of `layoutgemm.tune` beside a function, "prologue" or "epilogue".

    others  by name; those of `USUAL` may have their defaults, others None
    """
    if named := [name for name, value in others.items() if value != USUAL.get(name)]:
        article = "an" if function == "epilogue" else "a"
        raise OperandError(f"{named[0]} and {function}: a product with {article} {function} is tuned alone")
