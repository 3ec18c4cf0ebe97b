"""Arrays that a product gives: C, and what its epilogue's steps write. Nothing here imports jax.

Epilogue(Aux(), RowReduce("max", "most"))     (C, {"aux": .., "most": ..})
Epilogue(..., stores_c=False)                 (None, {..})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from ..kernels.epilogue.chain import Epilogue, EpilogueOperand
from ..torch_op.problem import Ints
from .product import TYPES

if TYPE_CHECKING:
    import jax

Shaped = tuple[Ints, str]  # shape and type, as JAX names it
Arrays: TypeAlias = "jax.Array | tuple[jax.Array, ...]"  # a tuple where there are several
# A jax.Array; of an epilogue that writes more than C, or none, (C or None, {name: array}).
Result: TypeAlias = Any
T = TypeVar("T")


class WritingProduct(Protocol):
    """A product whose epilogue may write arrays."""

    @property
    def epilogue(self) -> Epilogue | None:
        """The epilogue, or None."""

    @property
    def result(self) -> Ints:
        """The shape of C."""

    @property
    def types(self) -> tuple[str, str, str]:
        """Types of a, b and C."""

    def wanted(self, operand: EpilogueOperand) -> tuple[Ints, ...]:
        """The shapes of an operand: the last has one for each matrix."""


def written_by(epilogue: Epilogue | None) -> tuple[EpilogueOperand, ...]:
    """The epilogue's outputs, in order."""
    return () if epilogue is None else tuple([x for x in epilogue.given if x.written])


def read_by(epilogue: Epilogue | None) -> tuple[EpilogueOperand, ...]:
    """The arrays that the steps read, in order."""
    return () if epilogue is None else tuple([x for x in epilogue.given if not (x.host or x.written)])


def written_arrays(product: WritingProduct) -> list[tuple[EpilogueOperand, Shaped]]:
    """The epilogue's outputs, each with its shape and type."""
    own = written_by(product.epilogue)
    return [(x, (product.wanted(x)[-1] if x.axes else (), TYPES[x.dtype.name])) for x in own]


def stores_c(product: WritingProduct) -> bool:
    """True if the product has a C."""
    return product.epilogue is None or product.epilogue.stores_c


def outputs_of(product: WritingProduct) -> tuple[Shaped, ...]:
    """The arrays of a product. C unless it is not stored, then what the steps write."""
    return (*[(product.result, product.types[2])] * stores_c(product), *[x for _, x in written_arrays(product)])


def one_or_all(values: Sequence[T]) -> T | tuple[T, ...]:
    """The only value, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)


def listed(values: T | tuple[T, ...]) -> list[T]:
    """The values of `one_or_all`.

    >>> listed((1, 2))
    [1, 2]
    """
    return [*values] if isinstance(values, tuple) else [values]


def named_results(epilogue: Epilogue | None, values: Arrays) -> Result:
    """The caller's result: C, or C and the outputs by name."""
    written, found = written_by(epilogue), listed(values)
    if epilogue is None or not written:
        return found[0]
    c = found.pop(0) if epilogue.stores_c else None
    return c, dict(zip([x.name for x in written], found, strict=True))
