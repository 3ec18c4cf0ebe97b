"""Factors of the tensor cores' block scales as torch tensors: types, orders, products.

    order             factors of `rows` rows, one for each K block of 32 or 16 elements
    ----------------  ------------------------------------------------------------------------------------------------
    "NO_SWIZZLE"      ([batch,] rows, K blocks) of any strides; copied to the order below
    "SWIZZLE_32_4_4"  the contiguous order of `kernels.operands.block_scales`, in any shape; read where they lie

Groups of rows have the chunks of each group one behind the other, each group's rows padded to 128, as torch and cuBLAS
take them. A kernel's tensor map has as many chunks as any groups of so many rows need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from ...dtypes import dtype
from ...errors import OperandError, TensorError
from ...kernels.operands.block_scales import (
    CHUNK_BYTES,
    CHUNK_FACTORS,
    CHUNK_ROWS,
    FORMATS,
    ScaleFormat,
    blocked_view,
    chunk_rows,
)
from ...kernels.plan import tile_count
from ...kernels.run.operand_checks import resolved
from ...kernels.run.torch_tensors import TORCH_NAMES
from ..reference import exact

ELEMENTS = {
    getattr(torch, TORCH_NAMES[name]): name
    for form in FORMATS.values() for name in form.types
    if dtype(name).bits != 6 and hasattr(torch, TORCH_NAMES[name])  # torch has bytes of 6-bit floats alone
}  # fmt: skip
FACTORS = {
    getattr(torch, TORCH_NAMES[form.scale.name]): form.scale.name
    for form in FORMATS.values() if hasattr(torch, TORCH_NAMES[form.scale.name])
}  # fmt: skip
PAIRS = getattr(torch, TORCH_NAMES["e2m1"], None)  # two elements of K in a byte; None before torch 2.8
BLOCK_RECIPES = tuple(dict.fromkeys([f"BlockWise1x{form.vector}" for form in FORMATS.values()]))
PLAIN_ORDER, BLOCKED = "NO_SWIZZLE", "SWIZZLE_32_4_4"


class FactorLines(NamedTuple):
    """The places of an operand's factors.

    shape   ([batch,] rows, K blocks)
    groups  that the rows are in, each of which begins with a chunk of 128 rows in the kernel's order; 0 for none
    """

    shape: tuple[int, ...]
    groups: int = 0

    @property
    def rows(self) -> int:
        """Rows of a matrix in the kernel's order: of groups those of all chunks.

        >>> FactorLines((200, 4)).rows, FactorLines((200, 4), 3).rows
        (200, 512)
        """
        rows = self.shape[-2]
        return chunk_rows(rows, self.groups) * CHUNK_ROWS if self.groups else rows

    @property
    def bytes(self) -> int:
        """Bytes in the kernel's order."""
        return prod(self.counts) * CHUNK_BYTES

    @property
    def counts(self) -> tuple[int, int, int]:
        """Matrices, and chunks of each along its rows and along K."""
        *front, _, count = self.shape
        return prod(front), tile_count(self.rows, CHUNK_ROWS), tile_count(count, CHUNK_FACTORS)

    def is_blocked(self, name: str, x: torch.Tensor, form: ScaleFormat, swizzle: str = "") -> bool:
        """True if factors lie in the kernel's order. Raises TensorError for factors of neither order.

        swizzle  the order by name; "" for the first that the shape has
        """
        if swizzle != BLOCKED and tuple(x.shape) == self.shape:
            return False
        there = x.numel() >= self.bytes if self.groups else x.numel() == self.bytes
        if swizzle != PLAIN_ORDER and there and x.is_contiguous():
            return True
        said = f"{list(self.shape)}, a factor for each {form.vector} of K"
        matrices, rows, count = self.counts
        least = f" at least, the rows of each group padded to {CHUNK_ROWS}" * bool(self.groups)
        sizes = f"{matrices} * {rows} * {count} * {CHUNK_BYTES} = {self.bytes}"
        whole = f"contiguous, {sizes} factors by {BLOCKED}{least}"
        known = {PLAIN_ORDER: said, BLOCKED: whole}.get(swizzle, f"{said}; or {whole}")
        gaps = "" if x.is_contiguous() else f" and strides {list(x.stride())}"
        blocks = self.shape[-1]
        wide = blocks and x.shape[-1:] == (tile_count(blocks * form.vector, 128),)
        way = f"; {name}.float() has scales of 128" * bool(wide)
        raise TensorError(f"{name} has shape {list(x.shape)}{gaps}: {form.name} takes {known}{way}")

    def plain(self, x: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """The factors as `shape`. `places`: of the rows of groups, as `places_in_chunks` has them."""
        x = resolved(x.detach())
        if tuple(x.shape) == self.shape:
            return x
        shape, strides = self._view()
        padded = x.view(torch.uint8).reshape(-1).as_strided(shape, strides)
        *front, rows, count = self.shape
        padded = padded.reshape(*front, prod(shape[1:4]), prod(shape[4:]))
        lines = padded[..., :rows, :] if places is None else padded.index_select(0, places.clamp(max=self.rows - 1))
        return lines[..., :count].contiguous().view(x.dtype)

    def blocked(self, x: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """The factors in the kernel's order, flat. A copy is padded by zero bits. `places`: as of `plain`."""
        x = resolved(x.detach())
        if tuple(x.shape) != self.shape:
            return x.view(-1)[: self.bytes]
        codes = x.view(torch.uint8)
        if places is not None:  # a row behind the last takes those in no group
            codes = codes.new_zeros(self.rows + 1, self.shape[-1]).index_copy(0, places, codes)[:-1]
        shape, strides = self._view()
        beside = 0, prod(shape[4:]) - self.shape[-1], 0, prod(shape[1:4]) - codes.shape[-2]
        made = torch.empty(prod(shape), dtype=torch.uint8, device=x.device)
        made.as_strided(shape, strides).copy_(torch.nn.functional.pad(codes, beside).reshape(shape))
        return made.view(x.dtype)

    def _view(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return blocked_view(self.rows, self.shape[-1], self.counts[0])


Lines: TypeAlias = tuple[FactorLines, FactorLines]  # of A's factors and of B's


def factor_lines(a: torch.Tensor, b: torch.Tensor, form: ScaleFormat, joined: str = "", groups: int = 0) -> Lines:
    """The places of the factors of a and b.

    joined  which operand's rows, or columns, are in `groups`: "a", "b" or neither
    """
    count = tile_count(elements_of_k(a), form.vector)
    of_a = FactorLines((*a.shape[:-2], a.shape[-2], count), groups if joined == "a" else 0)
    return of_a, FactorLines((*b.shape[:-2], b.shape[-1], count), groups if joined == "b" else 0)


def blocked_tables(
    lines: Lines, scales: Mapping[str, torch.Tensor], places: torch.Tensor | None = None
) -> tuple[dict[str, torch.Tensor], bool]:
    """The factors as a kernel reads them, by name, and whether none is a copy.

    places  of the rows of groups, or None
    """
    of = list(zip(scales.items(), lines, strict=True))
    made = {name: line.blocked(x, places if line.groups else None) for (name, x), line in of}
    return made, all(tuple(x.shape) != line.shape for (_, x), line in of)


def copied_factors(lines: Lines, scales: Mapping[str, torch.Tensor]) -> list[tuple[str, int]]:
    """The factors that are copied into the kernel's order: why, and bytes."""
    return [
        (f"{name}: shape {list(x.shape)}, and the kernel takes chunks by {BLOCKED}", line.bytes)
        for (name, x), line in zip(scales.items(), lines, strict=True)
        if tuple(x.shape) == line.shape
    ]


def places_in_chunks(rows: int, ends: torch.Tensor, last: int) -> torch.Tensor:
    """The place of each row among rows of groups that are padded to 128.

    ends  where each group ends
    last  the place of rows in no group

    >>> places_in_chunks(5, torch.tensor([2, 2, 3]), 512).tolist()
    [0, 1, 128, 512, 512]
    """
    ends = ends.long()
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    padded = (ends - starts + (CHUNK_ROWS - 1)) // CHUNK_ROWS * CHUNK_ROWS
    row = torch.arange(rows, device=ends.device)
    group = torch.searchsorted(ends, row, right=True)
    own = group.clamp(max=len(ends) - 1)
    at = row - starts[own] + (padded.cumsum(0) - padded)[own]
    return torch.where(group < len(ends), at, last).clamp(0, last)  # of numbers that are no groups, too


def of_only_matrix(x: torch.Tensor) -> torch.Tensor:
    """The factors of a batch of one as those of its matrix.

    In the kernel's order these are the same.

    >>> of_only_matrix(torch.ones(1, 3, 2)).shape, of_only_matrix(torch.ones(512)).shape
    (torch.Size([3, 2]), torch.Size([512]))
    """
    return x[0] if x.ndim == 3 and x.shape[0] == 1 else x


def elements_of_k(a: torch.Tensor) -> int:
    """Elements of K in a row of A; a byte of `float4_e2m1fn_x2` has two."""
    return int(a.shape[-1] * (2 if a.dtype == PAIRS else 1))


def depth_of_b(b: torch.Tensor) -> int:
    """Elements of K in a column of B; a byte of `float4_e2m1fn_x2` has two.

    >>> depth_of_b(torch.ones(4, 2)), elements_of_k(torch.ones(3, 4))
    (4, 4)
    """
    return elements_of_k(b.mT)


def has_factors(a: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None) -> bool:
    """True if a product is one with block scales, by its types.

    >>> has_factors(torch.ones(2, 2), torch.ones(2, 1), None)
    False
    """
    if scale_a is None:
        return False
    kinds = [getattr(x, "dtype", None) for x in (scale_a, scale_b)]
    return all(kind in FACTORS for kind in kinds) or (PAIRS is not None and a.dtype == PAIRS)


def format_of(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, names: Sequence[str]
) -> ScaleFormat:
    """The format of operands and factors of these types. Raises OperandError, naming the first that no format has.

    names  of both recipes, "" for what the types say
    """
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in ELEMENTS:
            raw = "; its bytes of two elements are view(torch.float4_e2m1fn_x2)" if x.dtype == torch.uint8 else ""
            raise OperandError(f"{name} is {x.dtype}: block scales are of {listed_types(ELEMENTS)}{raw}")
    if scale_b is None:
        raise OperandError("scale_b is missing: with block scales a and b have factors")
    for name, x in (("scale_a", scale_a), ("scale_b", scale_b)):
        if x.dtype not in FACTORS:
            raw = f"; bytes of e8m0 are {name}.view(torch.float8_e8m0fnu)" if x.dtype == torch.uint8 else ""
            raise OperandError(f"{name} is {x.dtype}: factors are {listed_types(FACTORS)}{raw}")
    elements, factors = {ELEMENTS[x.dtype] for x in (a, b)}, {FACTORS[x.dtype] for x in (scale_a, scale_b)}
    for form in FORMATS.values():
        if elements <= set(form.types) and factors == {form.scale.name}:
            for side, recipe in zip("ab", names, strict=True):
                if recipe and recipe != f"BlockWise1x{form.vector}":
                    kinds = f"{a.dtype} with {scale_a.dtype} is {form.name}"
                    raise OperandError(f"recipe_{side} {recipe}: {kinds}, BlockWise1x{form.vector}")
            return form
    own = f"a is {a.dtype}, b {b.dtype}, scale_a {scale_a.dtype}, scale_b {scale_b.dtype}"
    known = "; ".join([
        f"{form.name}: {listed_types([kind for kind, x in ELEMENTS.items() if x in form.types])} with "
        f"{TORCH_NAMES[form.scale.name]}"
        for form in FORMATS.values()
    ])  # fmt: skip
    raise OperandError(f"{own}: formats are {known}")


def format_by_recipe(a: torch.Tensor, b: torch.Tensor, recipe: str) -> ScaleFormat:
    """The format of operands with that recipe, which have been checked.

    >>> one = torch.ones(2, 2)
    >>> format_by_recipe(one.to(torch.float8_e5m2), one.to(torch.float8_e4m3fn), "BlockWise1x32").name
    'mxfp8'
    """
    names = {ELEMENTS[a.dtype], ELEMENTS[b.dtype]}
    return next(x for x in FORMATS.values() if names <= set(x.types) and recipe == f"BlockWise1x{x.vector}")


def listed_types(kinds: Iterable[torch.dtype]) -> str:
    """Types by name, for an error.

    >>> listed_types([torch.int8, torch.uint8])
    'int8 and uint8'
    """
    return " and ".join([str(kind).removeprefix("torch.") for kind in kinds])


def block_sums(
    form: ScaleFormat, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """The scaled sums in float64, on the CPU. Factors lie in either order.

    Raises OperandError for a factor below 0, which no format has.
    """
    return exact(_values(form, a, scale_a, "scale_a"), _values(form, b.mT, scale_b, "scale_b").mT)


def _values(form: ScaleFormat, x: torch.Tensor, scale: torch.Tensor, name: str) -> torch.Tensor:
    """Elements times factors, (..., rows, K)."""
    x, k = resolved(x.detach()), elements_of_k(x)
    factors = FactorLines((*x.shape[:-1], tile_count(k, form.vector))).plain(scale).double()
    below = (factors < 0).nonzero()
    if len(below):
        at = below[0].tolist()
        raise OperandError(f"{name}{at} is {factors[tuple(at)].item()}: a factor is not below 0")
    if x.dtype == PAIRS:
        codes = x.view(torch.uint8)
        halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        e2m1 = dtype("e2m1")
        elements = torch.tensor(
            [float(each) for each in e2m1.decode(np.arange(1 << e2m1.bits, dtype=np.uint8))]
        ).double()[halves.long()]
    else:
        elements = x.double()
    return elements * factors.repeat_interleave(form.vector, -1)[..., :k]
