"""Scaled, grouped and gated products as `layoutgemm.tune` measures them: candidates, operands, a call, its error."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ...arguments import as_int, shown
from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.operands.gated import GATES, HALVES
from ...kernels.operands.promoted import DEPTH
from ...kernels.ragged import AlongK, Ragged, masked_rows
from ...kernels.run.error_bound import rounded_error, sum_error
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.rules import Sm90Choice, choose
from ...kernels.sm90.choose.scaled_grouped import (
    along_k_config,
    gated_config,
    k_blocks_config,
    read_each_column,
    scaled_config,
    usual_config,
)
from ...kernels.sm90.config import Sm90Config
from ..api import matmul
from ..bias_activation import ACTIVATIONS
from ..prepared import gpu
from ..scaled_grouped.api import grouped_matmul, scaled_matmul
from ..scaled_grouped.grouped import ALONG_K, MASKED, ROWS, ragged_name
from ..scaled_grouped.recipes import BLOCK, FAMILIES, ROW, SQUARE, TENSOR, Recipes, recipe_text
from ..scaled_grouped.scaled import NO_FINISH, check_scaled, derived, scaled_product, tuned_name
from ..types import C_NAMES, TYPES, usual_type

_EIGHT = ("e4m3", "e5m2")
_TILES = ((64, 128), (64, 256), (128, 64), (128, 128), (128, 192), (128, 256), (192, 128), (256, 128))
_FEW_ROWS_WIDTHS = (16, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256)  # of tiles of 64 rows, with a gate
_LARGE_TILES = ((256, 192), (256, 208), (256, 224))  # with a gate, and without scales
_FEW_ROWS = 64
_PAIR = (2, 1)
_CLUSTERS = ((1, 1), _PAIR, (1, 2))


class OperandSet(NamedTuple):
    """Operands of one product, and where it goes; `offsets` are the counts of masked groups."""

    a: torch.Tensor
    b: torch.Tensor
    scales: dict[str, torch.Tensor]
    offsets: torch.Tensor | None
    out: torch.Tensor


@dataclass(frozen=True)
class Tunable:
    """A product with scales, of `experts` groups, or with a gate.

    m, k     of masked groups M is each one's, of groups along K K is that of all
    dtype    of A and B: "bf16" or "f16", or of products with scales "e4m3" or "e5m2"
    recipes  of the scales, or None
    b_major  "k" for columns of B contiguous, "mn" for rows
    activation  the gate's, or None; N is C's columns, and B has twice as many
    form     what the groups are of: rows, masked rows, or K
    fast     whether sums stay in the tensor core, without scales of blocks
    """

    m: int
    n: int
    k: int
    dtype: str
    experts: int | None
    recipes: Recipes | None
    b_major: str = "k"
    activation: str | None = None
    form: str = ROWS
    fast: bool = True

    @property
    def in_blocks(self) -> bool:
        """True for 8-bit floats, whose groups along K begin at K blocks."""
        return self.dtype in _EIGHT

    @property
    def gate(self) -> str | None:
        """The function of the gate, or None."""
        return None if self.activation is None else GATES[self.activation]

    @property
    def sums(self) -> int:
        """Accumulators of an element of C. 2 of a gated product, which has twice C's columns in B."""
        return 1 if self.gate is None else HALVES

    @property
    def types(self) -> tuple[str, str, str]:
        """Types of A, B and C, with B's order, as a plan takes them."""
        stored = "bf16" if self.dtype in _EIGHT else self.dtype
        if self.form == ALONG_K and not self.in_blocks:
            return f"{self.dtype}:col", f"{self.dtype}:row", stored
        return self.dtype, f"{self.dtype}:{'col' if self.b_major == 'k' else 'row'}", stored

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and how many matrices of B there are."""
        return self.m, self.n, self.k, self.experts or 1

    @property
    def loop(self) -> tuple[int, ...] | None:
        """Rows and columns that share a scale in the main loop. () and None as `tuned_name` has them."""
        if self.recipes is not None and self.recipes.in_mainloop:
            return self.recipes.groups
        return None if self.fast else ()

    @property
    def is_matmuls(self) -> bool:
        """True for a product by `matmul`'s own kernel, which scales in its epilogue. Configurations are its own."""
        return self.experts is None and self.loop is None and self.gate is None

    @property
    def name(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types and orders by which the result is kept."""
        if self.experts is None:
            return tuned_name(self.types, self.loop, self.gate)
        return ragged_name(self.types, self.loop, self.gate, self.form)

    def plan(self, choice: Sm90Choice) -> Any:
        """The plan of a candidate. Raises LayoutError where none can be derived."""
        if self.is_matmuls:
            a, b, c = self.types
            return choice.plan(self.m, self.n, self.k, a=a, b=b, c=c)
        ragged: Ragged | AlongK | None = None
        if self.experts is not None and self.form == ALONG_K:
            ragged = AlongK.of(self.experts, multiple=DEPTH if self.in_blocks else 1)
        elif self.experts is not None:
            ragged = Ragged.of(self.experts, masked=self.form == MASKED)
        return derived(self.sizes, self.types, self.loop, choice.config, ragged, gate=self.gate)

    def candidates(self) -> Iterator[Sm90Choice]:
        """Configurations that could be the fastest, the default first.

        >>> one = Tunable(4096, 4096, 4096, "bf16", 8, None)
        >>> [choice.config.tile for choice in one.candidates()][:2]
        [(128, 256), (64, 128)]
        """
        own = self._default()
        first = own.config
        seen = {first}
        yield own
        if self.is_matmuls and self.m <= _FEW_ROWS:
            yield from self._near(own)
        for width in _FEW_ROWS_WIDTHS if self.m <= first.tile[0] == 64 and self.gate is not None else ():
            config = replace(first, tile=(64, width))
            if config not in seen:
                seen.add(config)
                yield Sm90Choice(config)
        large = self.gate is not None and self.recipes is None
        for config in configurations(large, self.experts is not None):
            if config not in seen:
                seen.add(config)
                yield Sm90Choice(config)

    def _near(self, choice: Sm90Choice) -> Iterator[Sm90Choice]:
        """Other widths and splits of K for few rows, swapped as the choice is."""
        for width in _FEW_ROWS_WIDTHS:
            for split in (1, 2, 4):
                config = replace(choice.config, tile=(choice.config.tile[0], width), split=split)
                if config != choice.config:
                    yield replace(choice, config=config)

    def _default(self) -> Sm90Choice:
        """The configuration of a product that was not measured."""
        loop, (m, n, k, count) = self.loop, self.sizes
        if self.is_matmuls:
            return choose(m, n, k, a=self.dtype, b_major="K", multiprocessors=self._room())[0]
        if self.form == ALONG_K and self.in_blocks:
            return Sm90Choice(k_blocks_config(*self.sizes, loop, places=self._room()))
        if self.form == ALONG_K:
            return Sm90Choice(along_k_config(*self.sizes))
        if self.experts is not None:
            masked, places = self.form == MASKED, self._room()
            sizes = self.rows * count if masked else m, n, k, count
            plain = self.form == ROWS and self.gate is None and (self.recipes is None or self.recipes.in_mainloop)
            usual = usual_config(
                sizes, self.types, loop, self.sums, places=places, masked=masked, shifts=plain
            )  # fmt: skip
            return Sm90Choice(usual)
        if loop is None:
            return Sm90Choice(gated_config(self.sizes, self.types, str(self.gate), self._room())[0])
        each = read_each_column(loop, n, self.sums)
        places = self._room()
        return Sm90Choice(scaled_config(m, n, k, each_column=each, sums=self.sums, places=places, adds=loop == ()))

    def _room(self) -> ClusterOccupancy:
        """The places of the GPU at hand, or of an H200 without one."""
        return gpu(torch.cuda.current_device() if torch.cuda.is_available() else -1)[0]

    @property
    def rows(self) -> int:
        """Rows of a masked group that count. As many as are expected of a product that was not measured."""
        return min(self.m, masked_rows(self.m))

    def operands(self) -> OperandSet:
        """Random normal operands on the current GPU. Groups of as many rows, or of K, each, or one more."""
        kind, columns = TYPES[self.dtype], self.n * self.sums
        front = () if self.experts is None or self.form == ALONG_K else (self.experts,)
        rows = front if self.form == MASKED else ()
        if self.types[0].endswith(":col"):
            a = torch.randn(self.k, self.m, device="cuda").to(kind).mT
        else:
            a = torch.randn(*rows, self.m, self.k, device="cuda").to(kind)
        across = (*front, columns, self.k) if self.types[1].endswith(":col") else (*front, self.k, columns)
        b = torch.randn(across, device="cuda").to(kind)
        shape = (*rows, self.m, self.n) if self.form != ALONG_K else (self.experts, self.m, self.n)
        out = torch.empty(shape, dtype=usual_type(kind), device="cuda")
        turned = b.mT if self.types[1].endswith(":col") else b
        return OperandSet(a, turned, self._scales(rows, front, columns), self._groups(), out)

    def _scales(self, rows: tuple[int, ...], front: tuple[int, ...], columns: int) -> dict[str, torch.Tensor]:
        """Scales of A, whose groups are `rows`, and of B, whose groups are `front`."""
        if self.recipes is None:
            return {}
        blocks, of_rows, of_columns = -(-self.k // DEPTH), rows, front
        if self.form == ALONG_K:  # whose blocks are those of K
            of_rows = of_columns = (self.experts or 1,)
        shapes = {
            BLOCK: ((*rows, self.m, blocks), (*front, columns, blocks)),
            SQUARE: ((*rows, -(-self.m // DEPTH), blocks), (*front, -(-columns // DEPTH), blocks)),
            ROW: ((*of_rows, self.m, 1), (*of_columns, 1, columns)),
            TENSOR: ((1,), (1,)),
        }
        named = zip(("scale_a", "scale_b"), self.recipes, (0, 1), strict=True)
        return {name: torch.rand(shapes[recipe][side], device="cuda") + 0.5 for name, recipe, side in named if recipe}

    def _groups(self) -> torch.Tensor | None:
        """Offsets of groups whose rows differ by one at most, or counts of masked ones."""
        if self.experts is None:
            return None
        size = self.k if self.form == ALONG_K else self.m
        unit = DEPTH if self.form == ALONG_K and self.in_blocks else 1
        ends = [*[size * e // self.experts // unit * unit for e in range(self.experts)], size]
        numbers = [self.rows] * self.experts if self.form == MASKED else ends
        return torch.tensor(numbers, dtype=torch.int32, device="cuda")

    def call(self, on: OperandSet, choice: Sm90Choice | None) -> torch.Tensor:
        """The product into its output."""
        config = None if choice is None else choice.config
        more: dict[str, Any] = {"activation": self.activation, "out": on.out, "config": config}
        if on.offsets is None and not on.scales:
            return matmul(on.a, on.b, **more)
        recipes = self.recipes or Recipes("", "")
        if self.is_matmuls and choice is not None:  # of which the operands may be swapped
            given: Any = choice
            operands = on.a, on.scales["scale_a"], on.b, on.scales.get("scale_b")
            checked = check_scaled(*operands, NO_FINISH, on.out.dtype, recipes)
            return scaled_product(checked, *operands, NO_FINISH, given, on.out)
        more |= {"recipe_a": recipes.a or None, "recipe_b": recipes.b or None, "use_fast_accum": self.fast}
        if on.offsets is not None:
            groups = {"counts" if self.form == MASKED else "offsets": on.offsets}
            return grouped_matmul(on.a, on.b, **groups, **on.scales, **more)
        return scaled_matmul(on.a, b=on.b, **on.scales, **more)

    def by_torch(self) -> Callable[[OperandSet], object] | None:
        """torch's product of the same operands, of groups without scales; None where it has none.

        It has none with a gate, with scales of blocks, and of masked groups.
        """
        if self.is_matmuls and self.recipes is not None and self.recipes.b:
            return lambda on: torch._scaled_mm(
                on.a, on.b, on.scales["scale_a"], on.scales["scale_b"], out_dtype=on.out.dtype, use_fast_accum=True
            )
        if self.form != ROWS or self.dtype != "bf16" or self.experts is None or self.gate is not None:
            return None
        return lambda on: torch._grouped_mm(on.a, on.b, offs=None if on.offsets is None else on.offsets[1:])

    def off(self, on: OperandSet) -> float:
        """The largest error of a set's output, in units of the error bound."""
        a, b = [self._scaled(x, on.scales.get(name), side) for side, (name, x) in enumerate(_named(on))]
        pairs = [(a, b, on.out)] if on.offsets is None else self._parts(a, b, on)
        # Sums of scaled blocks are added in f32.
        cut = sum_error(dtype(self.dtype).bits, self.k if self.loop is None else min(self.k, DEPTH))
        found = [torch.zeros((), dtype=torch.float64, device=on.out.device)]
        for left, right, out in pairs:
            want = left @ right
            bound = (cut + (self.k / DEPTH + 3) * 2.0**-23) * (left.abs() @ right.abs())
            if self.activation is not None:
                want, bound = _gated(want, bound, self.activation)
            bound = rounded_error(bound, want, dtype(C_NAMES[out.dtype])) + 1e-6
            if out.numel():
                found.append(((out.double() - want).abs() / bound).max())
        return float(torch.stack(found).max())  # NaN if one is

    def _scaled(self, x: torch.Tensor, scale: torch.Tensor | None, side: int) -> torch.Tensor:
        """An operand times its scales, in float64."""
        if scale is None or self.recipes is None:
            return x.double()
        if not self.recipes.in_mainloop and self.form == ALONG_K:
            return x.double()  # each group has its own
        if not self.recipes.in_mainloop:
            return x.double() * scale.double()
        lines = x if side == 0 else x.mT
        made = lines.double() * _spread(scale, self.recipes.groups[side], lines)
        return made if side == 0 else made.mT

    def _parts(self, a: torch.Tensor, b: torch.Tensor, on: OperandSet) -> Iterator[tuple[torch.Tensor, ...]]:
        """Each group's operands and its part of the output."""
        assert on.offsets is not None
        numbers = on.offsets.tolist()
        if self.form == MASKED:
            yield from ((a[e, :count], b[e], on.out[e, :count]) for e, count in enumerate(numbers))
            return
        for e, (first, end) in enumerate(itertools.pairwise(numbers)):
            if self.form == ALONG_K:
                left, right = a[:, first:end], b[first:end]
                if self.recipes is not None and not self.recipes.in_mainloop:
                    of = [on.scales.get(name, torch.ones(1, device=a.device)).double() for name, _ in _named(on)]
                    left, right = [x * (s[e] if s.ndim > 1 else s) for x, s in zip((left, right), of)]
                yield left, right, on.out[e]
            else:
                yield a[first:end], b[e], on.out[first:end]


def configurations(large: bool = True, turns: bool = False) -> Iterator[Sm90Config]:
    """Configurations of every shape of tile and cluster, each with both kinds of loader.

    large  tiles of 256 rows and up to 224 columns too; turns: pairs of CTAs whose last tile turns

    >>> len({(config.tile, config.cluster) for config in configurations()})
    33
    """
    for tile in (*_TILES, *(_LARGE_TILES if large else ())):
        consumers = min(tile[0] // 64, 3) if tile[0] != 256 else 2
        loader = "warp" if consumers == 1 else "self"
        base = Sm90Config(tile, consumers=consumers, loader=loader, chunks=1, buffers=2 if tile[0] < 192 else 1)
        for cluster in _CLUSTERS:
            for turn in (False, True) if turns and cluster == _PAIR else (False,):
                alone = replace(base, cluster=cluster).tuned(turn_last_pair=turn)
                yield from (alone, replace(alone, loader="warpgroup"))


def _named(on: OperandSet) -> tuple[tuple[str, torch.Tensor], ...]:
    """Each operand beside the name of its scales."""
    return ("scale_a", on.a), ("scale_b", on.b)


def _gated(sums: torch.Tensor, bound: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated products of sums, and their error bound.

    |act'| is at most 1.13. 2**-10 is for the kernel's exponential and error function.
    """
    (gate, up), (of_gate, of_up) = sums.chunk(2, -1), bound.chunk(2, -1)
    acted = ACTIVATIONS[GATES[activation]](gate)
    return acted * up, (1.13 * of_gate + 2.0**-10) * (up.abs() + of_up) + acted.abs() * of_up


def _spread(scale: torch.Tensor, group: int, x: torch.Tensor) -> torch.Tensor:
    """Scales as large as an operand whose lines they are of."""
    rows = scale.double().repeat_interleave(group, -2)[..., : x.shape[-2], :]
    return rows.repeat_interleave(DEPTH, -1)[..., : x.shape[-1]]


def tunable(
    m: int, n: int, k: int, dtype: str, a_major: str, b_major: str, recipe_a: object, recipe_b: object,
    groups: int | None, activation: str | None = None, form: str = ROWS, use_fast_accum: bool = True,
) -> Tunable | None:  # fmt: skip
    """The product that is to be tuned. None for one without scales, groups and a gate. Raises OperandError.

    >>> tunable(64, 64, 256, "e4m3", "k", "k", "BlockWise1x128", "BlockWise128x128", None).name[0]
    ('e4m3/1', 'e4m3/128', 'bf16')
    >>> tunable(64, 64, 256, "e4m3", "k", "k", "RowWise", "RowWise", None, use_fast_accum=False).name[0]
    ('e4m3 added in f32', 'e4m3', 'bf16')
    """
    names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
    if activation is not None and activation not in GATES:
        gates = ", ".join(map(repr, GATES))
        raise OperandError(f"activation {shown(activation)}: gates are tuned, {gates}; others change no configuration")
    groups = None if groups is None else as_int(groups, "groups", OperandError, 1)
    _check_form(form, groups, activation is not None)
    _check_fast(use_fast_accum, names)
    if groups is None and not any(names) and activation is None:
        return None
    recipes = _recipes_of(names, groups if form != ALONG_K else None)
    known = _EIGHT if recipes is not None else ("bf16", "f16", *_EIGHT)
    if activation is not None and b_major != "k":
        raise OperandError(f"b_major {shown(b_major)}: a gated product's kernel reads a K-major B, 'k'")
    if dtype not in known:
        raise OperandError(f"dtype {shown(dtype)}: {', '.join(map(repr, known))}")
    if form == ALONG_K and dtype not in _EIGHT:
        if (a_major, b_major) != ("mn", "mn"):
            raise OperandError(
                f"a_major {shown(a_major)}, b_major {shown(b_major)}: of groups along K both are 'mn', of 8 bits 'k'"
            )
    elif a_major != "k" or b_major not in ("k", "mn") or (dtype in _EIGHT and b_major != "k"):
        what = "'k' for A, and of 8 bits for B"
        raise OperandError(f"a_major {shown(a_major)}, b_major {shown(b_major)}: {what}")
    major = "k" if b_major == "k" else "n"
    return Tunable(m, n, k, dtype, groups, recipes, major, activation, form, use_fast_accum)


def _check_form(form: str, groups: int | None, gated: bool) -> None:
    """Raise OperandError for a form that no kernel has, or without groups."""
    if form not in (ROWS, MASKED, ALONG_K):
        raise OperandError(
            f"form {shown(form)}: groups are of {shown(ROWS)}, {shown(MASKED)} rows, or along {shown(ALONG_K)}"
        )
    if groups is None and form != ROWS:
        raise OperandError(f"form {shown(form)} without groups")
    if form == ALONG_K and gated:
        raise OperandError("form 'K': groups along K take no gate")


def _check_fast(fast: object, names: tuple[str, str]) -> None:
    """Raise OperandError where it makes no difference in which registers the sums are."""
    if not isinstance(fast, bool):
        raise OperandError(f"use_fast_accum = {shown(fast)}: True or False")
    if not fast and names[0] not in FAMILIES[1]:
        raise OperandError(f"use_fast_accum=False: of scales of {' or '.join(FAMILIES[1])}; others have one way to add")


def _recipes_of(names: tuple[str, str], groups: int | None) -> Recipes | None:
    """The recipes of both operands, or None. Raises OperandError for those that do not go together."""
    if not any(names):
        return None
    if not names[0]:
        raise OperandError("recipe_b without a recipe_a")
    for family in FAMILIES:
        if names[0] in family and names[1] and names[1] not in family:
            raise OperandError(f"recipe_a {names[0]} and recipe_b {names[1]}: both are of {' and '.join(family)}")
    if groups is not None and names[0] == SQUARE:
        raise OperandError(f"recipe_a {names[0]}: groups end at any row, so a scale is of one row")
    return Recipes(*names)
