"""Scaled, grouped and gated products as `layoutgemm.tune` measures them: candidates, operands, a call, its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.run.error_bound import rounded_error, sum_error
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.choose.scaled_grouped import gated_config, read_each_column, scaled_config, usual_config
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.gated import GATES, HALVES
from ...kernels.sm90.grouped import Ragged
from ...kernels.sm90.mainloop import DEPTH
from ..bias_activation import ACTIVATIONS
from ..operator import matmul
from ..prepared import gpu
from ..types import C_NAMES, TYPES, usual_type
from .api import grouped_matmul, scaled_matmul
from .grouped import ragged_name
from .recipes import FAMILIES, Recipes, recipe_text
from .scaled import derived, tuned_name

_EIGHT = ("e4m3", "e5m2")
_TILES = ((64, 128), (64, 256), (128, 64), (128, 128), (128, 192), (128, 256), (192, 128), (256, 128))
_FEW_ROWS_WIDTHS = (16, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256)  # of tiles of 64 rows, with a gate
_LARGE_TILES = ((256, 192), (256, 208), (256, 224))  # with a gate, and without scales
_CLUSTERS = ((1, 1), (2, 1), (1, 2))


class OperandSet(NamedTuple):
    """Operands of one product, and where it goes."""

    a: Any
    b: Any
    scales: dict[str, Any]
    offsets: Any
    out: Any


@dataclass(frozen=True)
class Tunable:
    """A product with scales, of `experts` groups of rows, or with a gate.

    dtype    of A and B: "bf16" or "f16", or of products with scales "e4m3" or "e5m2"
    recipes  of the scales, both of blocks; or None
    b_major  "k" for columns of B contiguous, "mn" for rows
    activation  the gate's, or None; N is C's columns, and B has twice as many
    """

    m: int
    n: int
    k: int
    dtype: str
    experts: int | None
    recipes: Recipes | None
    b_major: str = "k"
    activation: str | None = None

    @property
    def gate(self) -> str | None:
        """The function of the gate, or None."""
        return None if self.activation is None else GATES[self.activation]

    @property
    def sums(self) -> int:
        """Sums of an element of C, and columns of B for each of C's."""
        return 1 if self.gate is None else HALVES

    @property
    def types(self) -> tuple[str, str, str]:
        """Types of A, B and C, with B's order, as a plan takes them."""
        stored = "bf16" if self.dtype in _EIGHT else self.dtype
        return self.dtype, f"{self.dtype}:{'col' if self.b_major == 'k' else 'row'}", stored

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and how many matrices of B there are."""
        return self.m, self.n, self.k, self.experts or 1

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        groups = None if self.recipes is None else self.recipes.groups
        if self.experts is None:
            return tuned_name(self.types, groups or (), self.gate)
        return ragged_name(self.types, groups, self.gate)

    def plan(self, choice: Sm90Choice) -> Any:
        """The plan of a candidate. Raises LayoutError where none can be derived."""
        groups = None if self.recipes is None else self.recipes.groups
        ragged = None if self.experts is None else Ragged.of(self.experts)
        return derived(self.sizes, self.types, groups, choice.config, ragged, gate=self.gate)

    def candidates(self) -> Iterator[Sm90Choice]:
        """Configurations that could be the fastest, the default first.

        >>> one = Tunable(4096, 4096, 4096, "bf16", 8, None)
        >>> [choice.config.tile for choice in one.candidates()][:2]
        [(128, 256), (64, 128)]
        """
        first = self._default()
        seen = {first}
        yield Sm90Choice(first)
        for width in _FEW_ROWS_WIDTHS if self.m <= first.tile[0] == 64 and self.gate is not None else ():
            config = replace(first, tile=(64, width))
            if config not in seen:
                seen.add(config)
                yield Sm90Choice(config)
        for tile in (*_TILES, *(_LARGE_TILES if self.gate is not None and self.recipes is None else ())):
            consumers = min(tile[0] // 64, 3) if tile[0] != 256 else 2
            loader = "warp" if consumers == 1 else "self"
            base = Sm90Config(tile, consumers=consumers, loader=loader, chunks=1, buffers=2 if tile[0] < 192 else 1)
            for cluster in _CLUSTERS:
                for config in (replace(base, cluster=cluster), replace(base, cluster=cluster, loader="warpgroup")):
                    if config not in seen:
                        seen.add(config)
                        yield Sm90Choice(config)

    def _default(self) -> Sm90Config:
        """The configuration of a product that was not measured."""
        groups = None if self.recipes is None else self.recipes.groups
        if self.experts is not None:
            return usual_config(self.sizes, self.types, groups, self.sums)
        if groups is None:
            return gated_config(self.sizes, self.types, str(self.gate), gpu(torch.cuda.current_device())[0])[0]
        each = read_each_column(groups, self.n, self.sums)
        return scaled_config(self.m, self.n, self.k, each_column=each, sums=self.sums)

    def operands(self) -> OperandSet:
        """Random normal operands on the current GPU; groups of as many rows each, or one more."""
        kind = TYPES[self.dtype]
        front = () if self.experts is None else (self.experts,)
        a = torch.randn(self.m, self.k, device="cuda").to(kind)
        columns = self.n * self.sums
        across = (*front, columns, self.k) if self.b_major == "k" else (*front, self.k, columns)
        b = torch.randn(across, device="cuda").to(kind)
        scales = {}
        if self.recipes is not None:
            blocks = -(-self.k // DEPTH)
            groups = self.recipes.groups
            scales["scale_a"] = torch.rand(-(-self.m // groups[0]), blocks, device="cuda") + 0.5
            if len(groups) > 1:
                scales["scale_b"] = torch.rand(*front, -(-columns // groups[1]), blocks, device="cuda") + 0.5
        offsets = None
        if self.experts is not None:
            ends = [self.m * e // self.experts for e in range(self.experts + 1)]
            offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
        out = torch.empty(self.m, self.n, dtype=usual_type(kind), device="cuda")
        return OperandSet(a, b.mT if self.b_major == "k" else b, scales, offsets, out)

    def call(self, on: OperandSet, choice: Sm90Choice | None) -> Any:
        """The product into its output."""
        config = None if choice is None else choice.config
        more: dict[str, Any] = {"activation": self.activation, "out": on.out, "config": config}
        if on.offsets is not None:
            return grouped_matmul(on.a, on.b, on.offsets, **on.scales, **more)
        if not on.scales:
            return matmul(on.a, on.b, **more)
        return scaled_matmul(on.a, on.scales["scale_a"], on.b, on.scales.get("scale_b"), **more)

    def by_torch(self) -> Callable[[OperandSet], Any] | None:
        """torch's product of the same operands without scales of blocks; None where it has none for the types.

        None with a gate, too: torch has no such product.
        """
        if self.dtype != "bf16" or self.experts is None or self.gate is not None:
            return None
        return lambda on: torch._grouped_mm(on.a, on.b, offs=on.offsets[1:])

    def off(self, on: OperandSet) -> float:
        """The largest error of a set's output, in units of the error bound."""
        a, b = on.a.double(), on.b.double()
        if self.recipes is not None:
            a = a * _spread(on.scales["scale_a"], self.recipes.groups[0], a)
            if "scale_b" in on.scales:
                b = b * _spread(on.scales["scale_b"], self.recipes.groups[1], b.mT).mT
        if on.offsets is None:
            want, most = a @ b, a.abs() @ b.abs()
        else:
            ends = on.offsets.tolist()
            rows = [slice(ends[e], ends[e + 1]) for e in range(len(b))]
            want = torch.cat([a[part] @ b[e] for e, part in enumerate(rows)])
            most = torch.cat([a[part].abs() @ b[e].abs() for e, part in enumerate(rows)])
        # Sums of scaled blocks are added in f32.
        cut = sum_error(dtype(self.dtype).bits, self.k if self.recipes is None else min(self.k, DEPTH))
        bound = (cut + (self.k / DEPTH + 3) * 2.0**-23) * most
        if self.activation is not None:
            want, bound = _gated(want, bound, self.activation)
        bound = rounded_error(bound, want, dtype(C_NAMES[on.out.dtype])) + 1e-6
        return float(((on.out.double() - want).abs() / bound).max())


def _gated(sums: torch.Tensor, bound: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated products of sums, and their error bound.

    |act'| is at most 1.13. 2**-10 is for the kernel's exponential and error function.
    """
    (gate, up), (of_gate, of_up) = sums.chunk(2, -1), bound.chunk(2, -1)
    acted = ACTIVATIONS[GATES[activation]](gate)
    return acted * up, (1.13 * of_gate + 2.0**-10) * (up.abs() + of_up) + acted.abs() * of_up


def _spread(scale: Any, group: int, x: Any) -> Any:
    """Scales as large as an operand whose lines they are of."""
    rows = scale.double().repeat_interleave(group, -2)[..., : x.shape[-2], :]
    return rows.repeat_interleave(DEPTH, -1)[..., : x.shape[-1]]


def tunable(
    m: int, n: int, k: int, dtype: str, a_major: str, b_major: str, recipe_a: object, recipe_b: object,
    groups: int | None, activation: str | None = None,
) -> Tunable | None:  # fmt: skip
    """The product that is to be tuned; None for one without scales, groups and a gate. Raises OperandError.

    >>> tunable(64, 64, 256, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", None).name[0]
    ('e4m3/1', 'e4m3/128', 'bf16')
    """
    names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
    if activation is not None and activation not in GATES:
        gates = ", ".join(map(repr, GATES))
        raise OperandError(f"activation {activation!r}: gates are tuned, {gates}; others change no configuration")
    if groups is None and not any(names) and activation is None:
        return None
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise OperandError(f"groups = {groups!r}: an int of at least 1")
    recipes = None
    if any(names):
        for place, name in zip("ab", names, strict=True):
            if name not in FAMILIES[0] and (name or place == "a"):
                what = f"recipe_{place} {name}" if name else "recipe_b without a recipe_a"
                raise OperandError(f"{what}: what is tuned takes scales of {' or '.join(FAMILIES[0])}")
        recipes = Recipes(*names)
        if groups is not None and recipes.a == FAMILIES[0][1]:
            raise OperandError(f"recipe_a {recipes.a}: groups end at any row, so a scale is of one row")
    known = _EIGHT if recipes is not None else ("bf16", "f16", *_EIGHT)
    if activation is not None and b_major != "k":
        raise OperandError(f"b_major {b_major!r}: a gated product's kernel reads a K-major B, 'k'")
    if dtype not in known:
        raise OperandError(f"dtype {dtype!r}: {', '.join(map(repr, known))}")
    if a_major != "k" or b_major not in ("k", "mn") or (dtype in _EIGHT and b_major != "k"):
        what = "'k' for A, and of 8 bits for B"
        raise OperandError(f"a_major {a_major!r}, b_major {b_major!r}: {what}")
    return Tunable(m, n, k, dtype, groups, recipes, "k" if b_major == "k" else "n", activation)
