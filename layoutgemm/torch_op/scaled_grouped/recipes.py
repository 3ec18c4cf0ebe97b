"""Scale recipes: which part of an operand shares a scale. They go by torch's names or by the scales' shape.

    recipe                 a scale for                    scales of a (M, K)          scales of b (K, N)
    ---------------------  -----------------------------  --------------------------  ------------------------------
    TensorWise             the whole operand              one element                 one element
    RowWise                a row of a, a column of b      (M, 1) or (M,)              (1, N), (N, 1) or (N,)
    BlockWise1x128         that, and 128 of K             (M, K blocks)               (N, K blocks)
    BlockWise128x128       128 rows or columns, 128 of K  (M / 128, K blocks)         (N / 128, K blocks)

A batch is in front of all shapes but TensorWise's. Groups along K are in front of RowWise's, with the dimension of 1;
their blocks are those of K. The first two are factors of the whole sum, so an epilogue applies
them. The last two are factors of each K block, so the main loop does. A product has both of its recipes from one half
of the table, which makes a shape unambiguous: a K of one block has the same value by either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, TypeVar

from ...arguments import as_bool, nearest, shown
from ...errors import OperandError, TensorError
from ...kernels.operands.promoted import DEPTH

TENSOR, ROW, BLOCK, SQUARE = "TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128"
SCALES = ("scale_a", "scale_b")  # their names, as arguments and as tables of a main loop that promotes
FAMILIES = (BLOCK, SQUARE), (ROW, TENSOR)
_KNOWN = (TENSOR, ROW, BLOCK, SQUARE)
# By types of other kernels' scales. DeepGEMM packs four e8m0 of K, for tensor cores of compute capability 10.0.
_WAYS_TO_FLOAT32 = {
    "torch.float8_e8m0fnu": ", which have the same values: convert it",
    "torch.uint8": "; e8m0 in bytes is view(torch.float8_e8m0fnu).float()",
    "torch.int32": "; four packed e8m0 are contiguous().view(torch.float8_e8m0fnu).float()",
}
# torch's, for the tensor cores of compute capability 10.0: see `block_scaled`. And the type of both scales.
_OTHERS = {"BlockWise1x16": "float8_e4m3fn", "BlockWise1x32": "float8_e8m0fnu"}


class Scales(Protocol):
    """An array of scales, of torch or of JAX."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes."""

    @property
    def dtype(self) -> object:
        """Its type."""


class Squeezable(Scales, Protocol):
    """An array of scales that can lose a dimension of 1."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""

    def squeeze(self: object, dim: int, /) -> Any:
        """The array without a dimension."""


Scale = TypeVar("Scale", bound=Squeezable)


class Recipes(NamedTuple):
    """The recipes of both operands; `b` is "" where b has no scales."""

    a: str
    b: str

    @property
    def in_mainloop(self) -> bool:
        """True if the main loop applies the scales, one for each K block. Else an epilogue does."""
        return self.a in FAMILIES[0] or self.by_instruction

    @property
    def by_instruction(self) -> bool:
        """True for the tensor cores' own block scales: see `block_factors`."""
        return self.a in _OTHERS

    @property
    def groups(self) -> tuple[int, ...]:
        """Rows of A, and columns of B, that share a scale of 128 of K.

        >>> Recipes(BLOCK, SQUARE).groups
        (1, 128)
        """
        return tuple([DEPTH if name == SQUARE else 1 for name in (self.a, self.b) if name])


class ScaledOperand(NamedTuple):
    """An operand as its scales see it. The batch in front, rows or columns, and K blocks; `side` is "a" or "b".

    along_k  `front` is of groups along K, which share the K blocks
    """

    side: str
    front: tuple[int, ...]
    size: int
    blocks: int
    along_k: bool = False

    @property
    def name(self) -> str:
        """The name of its scales."""
        return f"scale_{self.side}"

    def shapes(self, recipe: str) -> list[tuple[int, ...]]:
        """The shapes that scales of a recipe may have; of TensorWise one of them."""
        front, size = self.front, self.size
        if recipe == TENSOR:
            return [(1,)]
        if recipe == ROW:
            column, row, vector = (*front, size, 1), (*front, 1, size), (*front, size)
            vectors = [] if self.along_k else [vector]  # that may be scales of blocks
            return [column, *vectors] if self.side == "a" else [row, column, *vectors]
        front = () if self.along_k else front
        return [(*front, size if recipe == BLOCK else -(-size // DEPTH), self.blocks)]

    def fits(self, recipe: str, scale: Scales) -> bool:
        """True if the scales have the recipe's shape."""
        own = tuple(scale.shape)
        if recipe == TENSOR:
            return len(own) <= len(self.front) + 2 and prod(own) == 1
        return any(len(own) == len(shape) and own == shape for shape in self.shapes(recipe))

    def check(self, recipe: str, scale: Scales) -> None:
        """Raise TensorError for scales of another shape than the recipe's."""
        if not self.fits(recipe, scale):
            raise TensorError(f"{self.name} has shape {list(scale.shape)}: {recipe} takes {_said(self.shapes(recipe))}")


def fast_accum(given: object) -> bool:
    """`use_fast_accum` of a call. Raises OperandError for anything but True and False, as "no" or a tensor.

    >>> fast_accum(True)
    True
    """
    return as_bool(given, "use_fast_accum", OperandError)


def recipe_text(name: str, recipe: object, scale: object = None) -> str:
    """A recipe by its name, "" for None. It is torch.nn.functional.ScalingType's member, or the member's name.

    scale  the type of the scales; None for a call that takes float32 alone

    Raises OperandError, naming the argument, for a recipe that is unknown, or that Hopper's tensor cores lack.

    >>> recipe_text("recipe_a", "RowWise"), recipe_text("recipe_a", None)
    ('RowWise', '')
    """
    if recipe is None:
        return ""
    [text] = as_members(name, (recipe,), "ScalingType")
    if text in _KNOWN or (text in _OTHERS and str(scale) == f"torch.{_OTHERS[text]}"):
        return text
    if text in _OTHERS:
        raise OperandError(
            f"{name} {text}: scales of {text.rpartition('x')[2]} elements are for tensor cores of compute "
            f"capability 10.0; these kernels are for 9.0, and take {', '.join(_KNOWN)}. scaled_matmul and "
            f"grouped_matmul have kernels of theirs for factors of {_OTHERS[text]} and config=Sm100Config()"
        )
    raise OperandError(f"{name} {shown(text)}: {nearest(text, _KNOWN)}known are {', '.join(_KNOWN)}")


def named_recipes(recipes: Sequence[object], *scales: object) -> tuple[str, str]:
    """The names of both recipes of a call, as `recipe_text` has them.

    scales  of both operands, or None

    >>> named_recipes((None, "RowWise"), None, None)
    ('', 'RowWise')
    """
    a, b = [
        recipe_text(name, recipe, getattr(scale, "dtype", None))
        for name, recipe, scale in zip(("recipe_a", "recipe_b"), recipes, scales, strict=True)
    ]
    return a, b


def as_members(name: str, given: object, kind: str) -> list[str]:
    """Names of members of an enumeration of torch.nn.functional. Each is a member or its name; one stands for a list.

    Raises OperandError, naming the argument, for anything else.

    >>> as_members("swizzle_a", "NO_SWIZZLE", "SwizzleType")
    ['NO_SWIZZLE']
    """
    torch = sys.modules.get("torch")  # whose types exist where it has been loaded
    members = None if torch is None else getattr(torch.nn.functional, kind, None)  # since torch 2.10
    found = []
    for each in given if isinstance(given, (list, tuple)) and given else (given,):
        if not isinstance(each, str) and (members is None or not isinstance(each, members)):
            raise OperandError(f"{name} is a {type(each).__qualname__}; it is a {kind} of torch, its name, or None")
        found.append(each if isinstance(each, str) else str(each.name))
    return found


def refusal_of_both(a: str, b: str) -> str:
    """Why no product quantises its operands by two recipes, "" for None. "" where one does.

    >>> refusal_of_both("BlockWise1x128", "BlockWise128x128")
    ''
    >>> refusal_of_both("RowWise", "")
    'recipe_a RowWise and recipe_b None: both of BlockWise1x128 and BlockWise128x128, or of RowWise and TensorWise'
    """
    for family in FAMILIES:
        if a in family and b in family:
            return ""
    known = ", or of ".join([" and ".join(family) for family in FAMILIES])
    return f"recipe_a {a or None} and recipe_b {b or None}: both of {known}"


def recipes_of(
    a: ScaledOperand,
    scale_a: Scales,
    recipe_a: str,
    b: ScaledOperand,
    scale_b: Scales | None,
    recipe_b: str,
) -> Recipes:
    """The recipes of two operands, by name or by the scales' shape.

    recipe_a, recipe_b  as `recipe_text` gives them

    Raises TensorError for a shape that is not the recipe's, or of no recipe. OperandError for scales that are not
    float32, and for two recipes of which one is the main loop's and one an epilogue's.

    >>> import torch
    >>> x, y = torch.ones(256, 4), torch.ones(2, 4)
    >>> recipes_of(ScaledOperand("a", (), 256, 4), x, "", ScaledOperand("b", (), 256, 4), y, "")
    Recipes(a='BlockWise1x128', b='BlockWise128x128')
    """
    if scale_b is None and recipe_b:
        raise OperandError(f"recipe_b {recipe_b} without a scale_b")
    found_a = _candidates(a, scale_a, recipe_a)
    found_b = [""] if scale_b is None else _candidates(b, scale_b, recipe_b)
    for family in FAMILIES:
        both = [name for name in found_a if name in family], [name for name in found_b if name in (*family, "")]
        if both[0] and both[1]:
            return Recipes(both[0][0], both[1][0])
    raise OperandError(
        f"scale_a is {found_a[0]} and scale_b {found_b[0]}: a product takes both from {' and '.join(FAMILIES[0])}, or "
        f"both from {' and '.join(FAMILIES[1])}"
    )


def _candidates(of: ScaledOperand, scale: Scales, recipe: str) -> list[str]:
    """The recipes whose shape the scales have: of one that is named, that alone."""
    if str(scale.dtype).removeprefix("torch.") != "float32":
        way = _WAYS_TO_FLOAT32.get(str(scale.dtype), "")
        raise OperandError(f"{of.name} is {scale.dtype}, and scales are float32{way}")
    if recipe:
        of.check(recipe, scale)
        return [recipe]
    found = [name for family in FAMILIES for name in family if of.fits(name, scale)]
    if not found:
        blocks = _said([*of.shapes(BLOCK), *of.shapes(SQUARE)])
        rows = _said(of.shapes(ROW))
        things = "row" if of.side == "a" else "column"
        raise TensorError(
            f"{of.name} has shape {list(scale.shape)}: {blocks} for a scale of {DEPTH}; {rows} for a scale of each "
            f"{things}; or one element"
        )
    return found


def _said(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", or ".join([str(list(shape)) for shape in shapes])


def as_vector(scale: Scale | None, recipe: str, rank: int) -> Scale | None:
    """Scales of rows or columns without their dimension of 1, and all others as they are.

    rank  of the operand

    >>> import torch
    >>> as_vector(torch.ones(3, 1), ROW, 2).shape, as_vector(torch.ones(4, 1, 3), ROW, 3).shape
    (torch.Size([3]), torch.Size([4, 3]))
    """
    if scale is None or recipe != ROW or scale.ndim < rank:
        return scale
    made: Scale = scale.squeeze(-1 if scale.shape[-1] == 1 else -2)
    return made
