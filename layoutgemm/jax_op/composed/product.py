"""A product of JAX arrays with several parts, as a value. Nothing here imports jax.

    part       arrays                        what it does
    --------   ---------------------------   ---------------------------------------------------------------
    how        a, b, b1, ..                  a function of the sums a @ b, a @ b1, ..; or a gate of b's halves
    second     a, b, a2, b2                  a @ b + a2 @ b2; with `how`, of each sum
    rows       rows                          row i of the product reads row rows[i] of a
    out_rows   out_rows                      row i of the product is row out_rows[i] of the result
    order      tiles, of a list              the tiles of C that are computed, and their order
    out        out                           what the result holds where nothing is stored; else zeros

Prologue and epilogue are those of a `FunctionProduct`; bias, activation and weights of rows are steps of the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import OperandError, TensorError
from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.operands.combined import Combined, name_of_b
from ...kernels.operands.gated import HALVES
from ...kernels.operands.pair import pair_of
from ...kernels.orders import Order, names_in_given
from ...kernels.plan import WORKSPACE
from ...torch_op.problem import Ints, half
from ..functions.product import FunctionProduct
from ..product import check_shapes

TILES, OUT, ROW_WEIGHTS = "tiles", "out", "row_weights"
INTS: Mapping[str, str] = {"int32": "i32", "int64": "i64"}


@dataclass(frozen=True)
class ComposedProduct(FunctionProduct):
    """A product with several parts as a trace knows it.

    how         of several sums, or a gate; None
    second      shapes of a2 and b2, or ()
    order       None: the kernel's own
    order_numbers  of the order: name and value; `sum_numbers` those of `how`
    rows        the product's rows and the type of the indices, or None; out_rows: the result's rows, likewise
    copy_rows   whether XLA gathers the rows first; None for the way that is estimated faster
    lists_tiles whether an array lists the tiles; `keeps` whether one has the result's values elsewhere
    """

    how: Combined | None = None
    second: tuple[Ints, ...] = ()
    order: Order | None = None
    order_numbers: tuple[tuple[str, int], ...] = ()
    sum_numbers: tuple[tuple[str, float], ...] = ()
    rows: tuple[int, str] | None = None
    out_rows: tuple[int, str] | None = None
    copy_rows: bool | None = None
    lists_tiles: bool = False
    keeps: bool = False

    @property
    def gates(self) -> bool:
        """True if b is [gate | up]."""
        return self.how is not None and not self.how.separate

    @property
    def matrices(self) -> int:
        """Matrices B that multiply the same a."""
        return self.how.matrices if self.how is not None and self.how.separate else 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k of the product. They are of chosen rows, and of columns that a gate halves."""
        m, n, k = super().sizes
        return m if self.rows is None else self.rows[0], n // HALVES if self.gates else n, k

    @property
    def result(self) -> Ints:
        """The result's shape."""
        m, n, _ = self.sizes
        return (*self.batch, m if self.out_rows is None else self.out_rows[0], n)

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays' names, in the primitive's order. Those of matrices as the kernel's parameters have them."""
        more = *[f"b{i}" for i in range(1, self.matrices)], *self.of_second
        parts = {ROWS: self.rows is not None, OUT_ROWS: self.out_rows is not None, TILES: self.lists_tiles}
        own = [name for name, there in parts.items() if there]
        return ("a", "b", *more, *[x.name for x in self.operands], *own, *[OUT] * self.keeps)

    @property
    def of_second(self) -> tuple[str, ...]:
        """Names of the second pair's arrays."""
        pair = pair_of(1, self.how) if self.second else None
        return () if pair is None else ("a2", *pair.of_b)

    @property
    def k_contiguous(self) -> ComposedProduct:
        """The product of arrays that are turned so that K is contiguous."""
        return self.lying((False, True))

    def lying(self, turned: tuple[bool, bool]) -> ComposedProduct:
        """The product of the same matrices in arrays that are turned so."""
        shapes = [self.a, self.b, *self.second]
        flips = [was is not now for was, now in zip(self.turned, turned, strict=True)]
        made = [(*s[:-2], s[-1], s[-2]) if flips[i % 2] else s for i, s in enumerate(shapes)]
        return replace(self, a=made[0], b=made[1], second=tuple(made[2:]), turned=turned)

    @property
    def known_by_place(self) -> bool:
        """True if an element may depend on its row or column. No mesh axis cuts the product."""
        placed = self.order is not None or self.rows is not None or self.out_rows is not None
        return placed or self.keeps or super().known_by_place

    def of_parts(self, shapes: Mapping[str, Ints]) -> ComposedProduct:
        """The product of one device's parts; `shapes`: of the arrays by name."""
        second = (shapes["a2"], shapes["b2"]) if self.second else ()
        own = tuple([shapes[x.name] for x in self.operands])
        return replace(self, a=shapes["a"], b=shapes["b"], second=second, shapes=own)


def check_matrices(
    a: Sequence[tuple[Ints, str]], b: Sequence[tuple[Ints, str]], turned: tuple[bool, bool], gates: bool
) -> None:
    """Raise TensorError or OperandError for matrices that no kernel multiplies together. Shapes and types of each."""
    sums = len(b) // len(a)
    for i, (shape, kind) in enumerate(b):
        left, of_a = a[i // sums]
        check_shapes(left, shape, turned)
        named = (f"a[{i // sums}]" if len(a) > 1 else "a"), name_of_b(i, len(a), len(b))
        if len(left) not in (2, 3) or len(left) != len(shape) or left[:-2] != shape[:-2]:
            raise OperandError(
                f"{named[0]} of shape {left} and {named[1]} of {shape}: a product with several parts is of two "
                "matrices, or of two batches of as many; jax.numpy.broadcast_to makes a batch"
            )
        if (of_a, kind) != (a[0][1], b[0][1]):
            raise TensorError(
                f"{named[0]} is {of_a} and {named[1]} {kind}: matrices of one type are multiplied, the first are "
                f"{a[0][1]} and {b[0][1]}"
            )
    columns, rows = (-2 if turned[1] else -1), (-1 if turned[0] else -2)
    for i, (shape, _) in enumerate(b[1:], 1):
        pair = i // sums
        left, first = a[pair][0], b[pair * sums][0]
        if shape != first or shape[columns] != b[0][0][columns] or left[rows] != a[0][0][rows]:
            of = (f"a[{pair}] of {left} and " if len(a) > 1 else "") + f"{name_of_b(i, len(a), len(b))} of {shape}"
            raise TensorError(f"{of}: the first are of {a[0][0]} and {b[0][0]}, and the products have one shape")
    if gates:
        half(2, b[0][0][columns])
    sizes = {"a": a[0][0], "b": b[0][0], **{f"a[{i}]": x for i, (x, _) in enumerate(a[1:], 1)}}
    for name, shape in sizes.items():
        if 0 in shape:
            raise OperandError(f"{name} has shape {shape}: of a product with several parts no size may be 0")


def check_parts_together(product: ComposedProduct, beside: Sequence[str]) -> None:
    """Raise OperandError for parts without a meaning together.

    beside  names of bias, activation and row_weights where they are given
    """
    if product.types[2] == "int32":
        parts = {"combine=": product.how, "an epilogue": product.epilogue, "a prologue": product.prologue}
        for name, part in parts.items():
            if part is not None:
                raise OperandError(f"the product is int32, and {name} computes in float32: say out_dtype='float32'")
        if product.second:
            raise OperandError("the product is int32: two pairs are added in float32, say out_dtype='float32'")
    if product.copy_rows is not None and product.rows is None:
        raise OperandError("copy_rows: of a product with rows=")
    if ROW_WEIGHTS in beside and product.rows is None and product.out_rows is None:
        raise OperandError("row_weights: the rows of a product with rows= or out_rows= have weights")
    if product.gates and "bias" in beside:
        raise OperandError("bias and a gate: add it to the sums of [gate | up] yourself, or scale in a prologue")
    writes = () if product.epilogue is None else product.epilogue.writes
    numbers = [name for name, _ in (*product.numbers, *product.sum_numbers, *product.order_numbers)]
    names = (WORKSPACE, *product.names, *writes, *numbers)
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise OperandError(f"two operands of the product are named {twice[0]}: give one of them another name")


def check_vector(name: str, shape: Ints, kind: str, m: int) -> None:
    """Raise OperandError unless an array has an index for each row of the product."""
    if kind not in INTS or shape != (m,):
        raise OperandError(
            f"{name} is {kind} of shape {shape}: int32 or int64 of ({m},), one for each row of the product"
        )


def check_kept(product: ComposedProduct, shape: Ints, kind: str) -> None:
    """Raise TensorError unless `out` is as the result is. With out_rows it may have more rows."""
    if shape != product.result or kind != product.types[2]:
        raise TensorError(f"out is {kind} of shape {shape}: the result is {product.types[2]} of {product.result}")


def order_names(order: Order | None) -> tuple[str, ...]:
    """Names of what an order reads."""
    return () if order is None else names_in_given(order)
