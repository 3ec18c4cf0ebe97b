"""A product with scales, or of groups, as a value. What a trace knows of it. Nothing here imports jax.

    form     a                  b                                    result
    -------  -----------------  -----------------------------------  ------------
    plain    (batch?, M, K)     (batch?, K, N); turned (.., N, K)    (batch?, M, N)
    rows     (rows, K)          (groups, K, N); turned (.., N, K)    (rows, N)
    K        (lines, M)         (lines, N)                           (groups, M, N)
             turned (M, lines)  turned (N, lines)

The last form multiplies A^T by B over the lines of each group: it is the gradient of a group's matrix. Of 8-bit floats
it is turned: K is contiguous, and groups begin at multiples of 128. Of the others b may be [gate | up], of twice the
result's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Epilogue, EpilogueOperand
from ...kernels.operands.gated import HALVES
from ...kernels.operands.promoted import DEPTH
from ...kernels.ragged import check_ends
from ...torch_op.problem import Ints
from ...torch_op.scaled_grouped.recipes import SQUARE, Recipes, ScaledOperand, Scales, recipe_text, recipes_of
from ..outputs import Shaped, outputs_of, read_by
from ..product import BIASES, check_alike, gate_of

PLAIN, ROWS, ALONG_K = "plain", "rows", "K"
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
WIDE = ("bfloat16", "float16")
OFFSETS = ("int32", "int64")


@dataclass(frozen=True)
class ScaledProduct:
    """activation(A @ B + bias), with scales or of groups.

    form        plain, rows or K: see the table above
    a, b        shapes as the arrays have them
    types       of a, b and of the result, as JAX names them
    turned      whether b holds the transposes of the matrices that are multiplied; of groups of K both operands
    offsets     the type of the groups' offsets, or None
    groups      their number, 0 without offsets
    recipes     of the scales, or None
    scales      shapes of the scales of a and b; None for a missing one
    fast        whether sums of row-wise and tensor-wise scales stay in the tensor core
    bias        type and shape of the bias, or None
    activation  a name, or None; a gate's scales of b and bias are of all columns of b
    epilogue    in place of both, or None
    shapes      of the arrays that it reads, in their order
    numbers     of it: name and value
    """

    form: str
    a: Ints
    b: Ints
    types: tuple[str, str, str]
    turned: bool = False
    offsets: str | None = None
    groups: int = 0
    recipes: Recipes | None = None
    scales: tuple[Ints | None, Ints | None] = (None, None)
    fast: bool = True
    bias: tuple[str, Ints] | None = None
    activation: str | None = None
    epilogue: Epilogue | None = None
    shapes: tuple[Ints, ...] = ()
    numbers: tuple[tuple[str, int | float], ...] = ()

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """The arrays of the epilogue, in the order of `shapes`."""
        return read_by(self.epilogue)

    @property
    def outputs(self) -> tuple[Shaped, ...]:
        """Shapes and types of the results: C, then the epilogue's outputs."""
        return outputs_of(self)

    def wanted(self, operand: EpilogueOperand) -> tuple[Ints, ...]:
        """The shapes that an array for an operand of the epilogue may have.

        >>> from layoutgemm.kernels.epilogue.chain import Bias
        >>> product = ScaledProduct(ROWS, (8, 4), (3, 4, 5), ("bfloat16",) * 3, offsets="int32", groups=3)
        >>> product.wanted(Bias("n").given[0]), product.wanted(Bias("m").given[0])
        (((5,), (3, 5)), ((8,),))
        """
        m, n, *_ = self.sizes
        if not operand.axes:
            return ((), (1,))
        each = (self.groups,) if self.form == ROWS and operand.axes == "n" else self.result[:-2]
        return tuple(dict.fromkeys(((*operand.shape(m, n),), (*each, *operand.shape(m, n)))))

    @property
    def gate(self) -> str | None:
        """The function of a gate, or None."""
        return gate_of(self.activation)

    @property
    def columns(self) -> int:
        """Columns of b: with a gate twice the result's."""
        return self.b[-2 if self.turned else -1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K, and the batch or the groups. For groups of rows M is that of all, and K of all along it."""
        if self.form == ALONG_K:
            lines, other = (1, 0) if self.turned else (0, 1)
            return self.a[other], self.b[other], self.a[lines], self.groups
        n, k = self.columns // (1 if self.gate is None else HALVES), self.b[-1 if self.turned else -2]
        return self.a[-2], n, k, self.groups if self.form == ROWS else prod(self.a[:-2])

    @property
    def result(self) -> Ints:
        """The result's shape."""
        m, n, *_ = self.sizes
        return (self.groups, m, n) if self.form == ALONG_K else (*self.a[:-2], m, n)

    @property
    def names(self) -> tuple[str, ...]:
        """The operands, in the order of a call."""
        given = (self.offsets, self.scales[0], self.scales[1], self.bias)
        names = ("offsets", "scale_a", "scale_b", "bias")
        own = [operand.name for operand in self.operands]
        return ("a", "b", *[name for name, x in zip(names, given, strict=True) if x is not None], *own)

    def without_finish(self) -> ScaledProduct:
        """The sums of all columns alone, in float32."""
        types = *self.types[:2], "float32"
        return replace(self, types=types, bias=None, activation=None, epilogue=None, shapes=(), numbers=())


def recipes_for(
    product: ScaledProduct, scale_a: Scales, scale_b: Scales | None, recipe_a: object, recipe_b: object
) -> Recipes:
    """The recipes of the scales of a product. Raises OperandError or TensorError, naming the scales."""
    names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
    m, _, k, _ = product.sizes
    n, along_k = product.columns, product.form == ALONG_K
    fronts = [(product.groups,)] * 2 if along_k else [product.a[:-2], product.b[:-2]]
    of_a, of_b = [
        ScaledOperand(side, front, size, -(-k // DEPTH), along_k)
        for side, front, size in (("a", fronts[0], m), ("b", fronts[1], n))
    ]
    found = recipes_of(of_a, scale_a, names[0], of_b, scale_b, names[1])
    if product.form == ROWS and found.a == SQUARE and m > 1:
        shape = [m, of_a.blocks]
        raise TensorError(f"scale_a has shape {list(scale_a.shape)}: {shape}, as groups end at any row")
    return found


def check_operands(a: str, b: str, scaled: bool, grouped: bool) -> None:
    """Raise OperandError or TensorError unless a kernel multiplies these types.

    >>> check_operands("float32", "float32", False, True)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: a is float32: a grouped product is of bfloat16, float16, float8_e4m3fn, float8_e5m2
    """
    known = FLOAT8 if scaled else (*WIDE, *FLOAT8)
    for name, kind in (("a", a), ("b", b)):
        if kind not in known:
            what = "a grouped product" if grouped else "a product"
            raise OperandError(f"{name} is {kind}: {what}{' with scales' * scaled} is of {', '.join(known)}")
    check_alike(a, b)


def check_bias(bias: tuple[str, Ints] | None, shapes: list[Ints]) -> None:
    """Raise OperandError or TensorError for a bias that no kernel adds."""
    if bias is None:
        return
    if bias[0] not in BIASES:
        raise OperandError(f"bias is {bias[0]}; it is one of {', '.join(BIASES)}")
    if bias[1] not in shapes:
        raise TensorError(f"bias has shape {bias[1]}: {' or '.join(map(str, shapes))}")


def check_offsets(
    kind: str, shape: Ints, groups: int | None, known: npt.NDArray[np.int64] | None, size: int, things: str
) -> None:
    """Raise OperandError for offsets of another type or shape, and values that are no groups.

    groups  their number, where an operand has it
    known   the values where the host has them, else None: a kernel does not check them
    size, things  of A: its rows, or its columns along K
    """
    if kind not in OFFSETS or len(shape) != 1 or (shape[0] < 1 if groups is None else shape != (groups + 1,)):
        want = "groups + 1" if groups is None else groups + 1
        raise OperandError(
            f"offsets is {kind} of shape {shape}: int32 or int64 of ({want},), where each group begins, and the last "
            "one ends"
        )
    if known is not None:
        check_ends(known, size, things)
