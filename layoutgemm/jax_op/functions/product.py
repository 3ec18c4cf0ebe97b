"""A product of JAX arrays with functions of its elements, as a value. Nothing here imports jax.

    epilogue(prologue(A) @ B)       of two matrices, or of two batches of as many

A batch has vectors and matrices of its own, or, of an epilogue, one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...errors import OperandError, TensorError
from ...kernels.column_groups import check_groups
from ...kernels.epilogue.chain import (
    ColumnReduce,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Reduction,
    refusal_of_type,
)
from ...kernels.epilogue.parameters import check_names
from ...kernels.epilogue.steps import ordered
from ...kernels.operands.prologue import TYPES as ROUNDED
from ...kernels.operands.prologue import Prologue, PrologueOperand
from ...kernels.partials import check_groups_of_columns
from ...kernels.plan import WORKSPACE
from ...torch_op.problem import Ints
from ..outputs import Shaped, WritingProduct, outputs_of, read_by
from ..product import C_NAMES, TYPES, check_shapes

FUNCTION_TYPES = tuple([TYPES[name] for name in ROUNDED])  # of an A with a prologue


@dataclass(frozen=True)
class FunctionProduct:
    """A product as a trace knows it.

    a, b      shapes as the arrays have them: the last two exchanged where `turned`
    types     of a, b and the result, as JAX names them
    epilogue  or None; prologue likewise
    shapes    of the arrays that they read, prologue's first
    numbers   of the epilogue: name and value
    """

    a: Ints
    b: Ints
    types: tuple[str, str, str]
    turned: tuple[bool, bool]
    epilogue: Epilogue | None
    prologue: Prologue | None
    shapes: tuple[Ints, ...] = ()
    numbers: tuple[tuple[str, int | float], ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        m, k = self.a[-2:][::-1] if self.turned[0] else self.a[-2:]
        return m, self.b[-2] if self.turned[1] else self.b[-1], k

    @property
    def batch(self) -> Ints:
        """The shape of the batch: empty, or its size."""
        return self.a[:-2]

    @property
    def result(self) -> Ints:
        """The result's shape."""
        return (*self.batch, *self.sizes[:2])

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays, in the order of a call."""
        return ("a", "b", *[operand.name for operand in self.operands])

    @property
    def gates(self) -> bool:
        """True if b is [gate | up]."""
        return False

    @property
    def second(self) -> tuple[Ints, ...]:
        """Shapes of a second pair, or ()."""
        return ()

    @property
    def of_second(self) -> tuple[str, ...]:
        """Names of the second pair's arrays."""
        return ()

    @property
    def known_by_place(self) -> bool:
        """True if an element may depend on its row or column. No mesh axis cuts the product."""
        steps = () if self.epilogue is None else self.epilogue.steps
        own = any(isinstance(getattr(x, "operation", None), Reduction) for x in steps)
        return own or self.prologue is not None or any(isinstance(x, (Custom, Dropout)) for x in steps)

    def of_parts(self, shapes: Mapping[str, Ints]) -> FunctionProduct:
        """The product of one device's parts; `shapes`: of the arrays by name."""
        own = tuple([shapes[x.name] for x in self.operands])
        return replace(self, a=shapes["a"], b=shapes["b"], shapes=own)

    @property
    def k_contiguous(self) -> FunctionProduct:
        """The product of arrays that are turned so that K is contiguous."""
        m, n, k = self.sizes
        return replace(self, a=(*self.batch, m, k), b=(*self.batch, n, k), turned=(False, True))

    @cached_property
    def operands(self) -> tuple[PrologueOperand | EpilogueOperand, ...]:
        """The arrays of the functions, in the order of `shapes`."""
        own = () if self.prologue is None else self.prologue.operands
        return (*own, *read_by(self.epilogue))

    @cached_property
    def outputs(self) -> tuple[Shaped, ...]:
        """Shapes and types of the results: C, then the epilogue's outputs."""
        return outputs_of(self)

    def wanted(self, operand: PrologueOperand | EpilogueOperand) -> tuple[Ints, ...]:
        """The shapes that an array for an operand may have."""
        m, n, k = self.sizes
        if isinstance(operand, PrologueOperand):
            return ((*self.batch, m if operand.axis == "m" else k),)
        one = operand.shape(m, n)
        return (one, (*self.batch, *one)) if operand.axes else ((), (1,))


def check_functions(epilogue: object, prologue: object, given: object, beside: Sequence[str]) -> None:
    """Raise OperandError for functions of other classes, or beside arguments that exclude them.

    PlanError for groups of columns that no kernel reduces.

    beside  names of bias and activation where they are given
    """
    if epilogue is None and prologue is None:
        raise OperandError("given holds the operands of an epilogue or a prologue, and there is neither")
    if given is not None and not isinstance(given, Mapping):
        raise OperandError(f"given is a {type(given).__qualname__}; it is a dict, the functions' operands by name")
    if prologue is not None and not isinstance(prologue, Prologue):
        raise OperandError(f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of")
    if epilogue is None:
        return
    if not isinstance(epilogue, Epilogue):
        raise OperandError(refusal_of_type(epilogue))
    if beside:
        raise OperandError(
            f"{beside[0]} and epilogue: one or the other; Bias() and Activation(...) are steps of the latter"
        )
    if epilogue.flipped or epilogue.sums:
        raise OperandError("the epilogue is of a transposed C, or of a gate's sums: of C itself, steps alone")
    check_groups_of_columns(epilogue)
    check_groups(epilogue)


def check_given(epilogue: Epilogue | None, prologue: Prologue | None, given: Mapping[str, object]) -> None:
    """Raise OperandError unless `given` has what the functions read, each name once."""
    of_prologue = () if prologue is None else prologue.names
    of_epilogue = () if epilogue is None else tuple([x.name for x in epilogue.given if not x.written])
    check_written(epilogue, given)
    own = (*of_prologue, *of_epilogue, *(() if epilogue is None else epilogue.writes))
    if WORKSPACE in own:  # other names of a call's own arrays are refused where functions are made
        raise OperandError(f"an operand of the functions is named {WORKSPACE}, as one of the product is")
    if twice := [name for name in of_prologue if name in of_epilogue]:
        raise OperandError(f"{twice[0]} is an operand of the prologue and of the epilogue: name one otherwise")
    takes = "the prologue takes" if epilogue is None else "the epilogue takes" if prologue is None else "they take"
    check_names((*of_prologue, *of_epilogue), given, takes)


def check_written(epilogue: Epilogue | None, given: Mapping[str, object]) -> None:
    """Raise OperandError for an array to write to: what an epilogue writes is a result."""
    if found := [name for name in (() if epilogue is None else epilogue.writes) if name in given]:
        raise OperandError(f"{found[0]} is given, and the epilogue writes it: JAX arrays are results, (c, {{name: x}})")


def check_stored(product: WritingProduct) -> None:
    """Raise OperandError for a C of another type than `Quantize` gives.

    PlanError where C's columns are no whole groups.
    """
    if product.epilogue is None:
        return
    product.epilogue.check_columns(product.result[-1])
    step, kind = product.epilogue.quantizes, product.types[2]
    if step is not None and C_NAMES[kind] != step.dtype:
        raise OperandError(f"the epilogue quantizes to {step.dtype}: say out_dtype='{TYPES[step.dtype]}', not {kind}")


def check_operands(product: FunctionProduct, arrays: Sequence[tuple[Ints, str]]) -> None:
    """Raise OperandError or TensorError for matrices or operands that do not fit. `arrays`: shapes and types."""
    check_shapes(product.a, product.b, product.turned)
    if len(product.a) not in (2, 3) or len(product.a) != len(product.b) or product.a[:-2] != product.b[:-2]:
        raise OperandError(
            f"epilogue= and prologue= are of two matrices, or of two batches of as many: not of shapes {product.a} and "
            f"{product.b}; jax.numpy.broadcast_to makes a batch"
        )
    check_stored(product)
    if product.types[2] == "int32":
        raise OperandError("the product is int32, and functions compute in float32: say out_dtype='float32'")
    if product.prologue is not None and product.types[0] not in FUNCTION_TYPES:
        raise OperandError(f"a is {product.types[0]}: a prologue is of {', '.join(FUNCTION_TYPES)}")
    for operand, (shape, kind) in zip(product.operands, arrays, strict=True):
        check_operand(operand, product.wanted(operand), shape, kind)


def check_operand(
    operand: PrologueOperand | EpilogueOperand, wanted: Sequence[Ints], shape: Ints, kind: str
) -> None:  # fmt: skip
    """Raise TensorError for an array of another shape or type than an operand takes."""
    if shape not in wanted or C_NAMES.get(kind) != operand.dtype.name:
        texts = " or ".join(str(x) for x in dict.fromkeys(wanted))
        raise TensorError(
            f"{operand.name} is {kind} of shape {shape}: it takes {TYPES[operand.dtype.name]} of shape {texts}"
        )


def in_rows(epilogue: Epilogue, n: int) -> Epilogue:
    """The epilogue as a kernel takes it. Matrices with contiguous rows, two or eight columns at a time.

    >>> from layoutgemm.kernels.epilogue.chain import Aux, Epilogue, RowReduce
    >>> taken = in_rows(Epilogue(Aux(order="col"), RowReduce("top4", order="col")), 64)
    >>> [operand.order for operand in taken.given], taken.pairs
    (['row', 'row', 'row'], True)
    """
    matrices = [operand for operand in epilogue.given if operand.axes == "mn"]
    by_row = dict.fromkeys([operand.name for operand in epilogue.given if operand.rank == 2], "row")
    steps = [ordered(step, by_row) for step in epilogue.steps]
    pairs = all(operand.shape(1, n)[1] % 2 == 0 for operand in matrices) and n % 2 == 0
    lines = n % 8 == 0 and bool(epilogue.matrices)
    return Epilogue(*steps, pairs=pairs, stores_c=epilogue.stores_c, lines=lines)


def known_by_row(epilogue: Epilogue) -> bool:
    """True if a step may know its row, or its matrix of a batch. No two matrices are merged."""
    own = any(operand.axes not in ("", "n") for operand in epilogue.given)
    return own or any(isinstance(step, (Custom, Dropout, ColumnReduce)) for step in epilogue.steps)
