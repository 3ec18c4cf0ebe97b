"""Gated products, such as SwiGLU: C = act(A @ W_gate) * (A @ W_up).

One kernel computes C, which has half of B's columns.

The weights stay as models keep them, one (2H, K) matrix [W_gate; W_up], which is a column-major B of 2H columns. A tile
of B is half gate columns and half up columns of the same numbers, so that a thread's accumulator holds both:

    columns of B              rows of B's tile        a thread's accumulator     stored
    n .. n + w        gate    0 .. w                  value v                    act(value v) * value (v + count)
    H + n .. + w      up      w .. 2w                 value v + count            for each v < count

w is half the tile's N, count half the accumulator's registers. The copies' tensor map has one more dimension, `half`,
of two elements H lines apart. The map's end along n, which is H, keeps a ragged last tile from reading W_up as W_gate.
Groups of rows, and masked ones, have such a matrix each; the map's last dimension is theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from ...atoms import TmaPlan
from ...errors import PlanError, TmaError
from ..derive import Operand, OperandPlan
from ..epilogue.chain import Epilogue
from ..epilogue.steps import ACTIVATIONS, check_activation
from .combined import Combined
from .pair import SecondPair

HALF = "half"  # the dimension of a tensor map: 0 for the gate's columns of B, 1 for those that it multiplies
HALVES = 2
GATES = {"swiglu": "silu", "geglu": "gelu"}  # activations of the gates of gated products, by their names
T = TypeVar("T")


class Gated(Combined):
    """kind(gate) * up, in f32; kind is one of `kernels.epilogue.steps.ACTIVATIONS`: "silu" makes SwiGLU, "gelu" GeGLU.

    Raises PlanError for another kind.

    >>> import numpy as np
    >>> from layoutgemm.kernels.epilogue.numpy_math import Math
    >>> Gated("relu").apply((np.array([-1.0, 2.0]), np.array([3.0, 4.0])), Math).tolist()
    [0.0, 8.0]
    """

    kind: str

    def __init__(self, kind: str):
        check_activation(kind, "gated =")
        made = Combined.of(lambda gate, up, ops: ACTIVATIONS[kind](gate, ops) * up)
        super().__init__(made.expression, made.matrices, made.numbers)
        object.__setattr__(self, "kind", kind)

    @property
    def separate(self) -> bool:
        """False: both are in one matrix."""
        return False

    def __repr__(self) -> str:
        return f"Gated({self.kind!r})"

    def __str__(self) -> str:
        return f"gated by {self.kind}"


def combination(given: Any) -> Combined | None:
    """The function of the sums of an argument. The argument is a Combined, the name of a gate, or None.

    Raises PlanError for anything else.

    >>> combination("silu") == Gated("silu"), combination(None)
    (True, None)
    """
    return given if given is None or isinstance(given, Combined) else Gated(given)


def halves_of(gated: Combined | None) -> int:
    """Columns of B for each column of C. 2 of a gated product, the gate's and the gated.

    >>> halves_of(Gated("silu")), halves_of(None)
    (2, 1)
    """
    return HALVES if gated is not None and not gated.separate else 1


def epilogue_behind(how: Combined | None, given: object) -> Epilogue:
    """The epilogue of an argument beside that function of sums. Raises PlanError for steps of sums that have none.

    >>> epilogue_behind(None, None) == Epilogue()
    True
    """
    if how is not None and how.matrices > HALVES and isinstance(given, Epilogue) and given.sums:
        of_b = ", ".join(SecondPair(1, how.matrices).of_b)
        raise PlanError(
            f"sums = {given.sums}: steps of each sum are of {HALVES} sums, and these are {how.matrices}. A second pair "
            f"adds a bias to each: pair = 1, a2 of (M, 1) ones, {of_b} of (1, N)"
        )
    return Epilogue.of(given, how is not None)


def check_sums(how: Combined, b: Operand, c: Operand) -> None:
    """Raise PlanError, naming the obstacle, for operands of which no kernel combines several sums."""
    if not how.separate and b.order != "col":
        raise PlanError(f"b is {b}: a gated product takes the weights as one (2H, K) matrix, a 'col' B")
    if c.dtype.kind != "float":
        what = "several sums are combined" if how.separate else "a gated product is computed"
        raise PlanError(f"c is {c.dtype}, and {what} in f32: store f32, or a narrower float")


def check_gated(tile_n: int, split: int) -> None:
    """Raise PlanError, naming the obstacle, for a tile without a gated kernel."""
    if tile_n % (unit := HALVES * 8 * split):
        of = f", and K in {split} parts" if split > 1 else ""
        raise PlanError(f"a tile of {tile_n} columns, half of them the gate's{of}: a multiple of {unit}")


def in_halves(tma: TmaPlan) -> TmaPlan:
    """The same tile, of which the second half of the lines comes from another place. The map has a dimension more.

    Shared memory and bytes stay as they are: a box holds its elements in the order of its dimensions. Raises TmaError
    where a box does not hold the tile's lines from first to last.

    >>> from layoutgemm.atoms import smem_tile
    >>> from layoutgemm.atoms.tma.derive import derive
    >>> plan = in_halves(derive(smem_tile((64, 128), "bf16", "K"), ("k", "n")))
    >>> plan.dims, plan.box, [copy.coord_offset for copy in plan.instructions]
    (('k', 'n', 'half'), (64, 32, 2), [(0, 0, 0), (64, 0, 0)])
    """
    *inner, lines = tma.box
    if tma.extents is not None or lines % HALVES or any(copy.coord_offset[-1] for copy in tma.instructions):
        raise TmaError(f"a tile of boxes {tma.box} along {tma.dims} does not fall into two halves", rule="tile")
    return replace(
        tma,
        dims=(*tma.dims, HALF),
        box=(*inner, lines // HALVES, HALVES),
        steps=(*tma.steps, 1) if tma.steps else (),
        instructions=tuple(replace(copy, coord_offset=(*copy.coord_offset, 0)) for copy in tma.instructions),
    )


def as_one_matrix(operand: OperandPlan) -> OperandPlan:
    """The operand with a map of the whole matrix, both halves. It is for the rules that a matrix in memory has to
    obey."""
    tma = operand.tma
    if HALF not in tma.dims:
        return operand
    at = tma.dims.index(HALF)
    copies = tuple(replace(copy, coord_offset=_without(copy.coord_offset, at)) for copy in tma.instructions)
    whole = replace(tma, dims=_without(tma.dims, at), box=_without(tma.box, at), instructions=copies)
    return replace(operand, tma=replace(whole, steps=_without(tma.steps, at)))


def _without(each: tuple[T, ...], at: int) -> tuple[T, ...]:
    return (*each[:at], *each[at + 1 :])
