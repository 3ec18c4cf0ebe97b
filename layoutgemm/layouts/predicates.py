"""Verdicts on partial operations, in place of exceptions."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import LayoutError
from . import registries
from .proofs.verdicts import Answer, Function, Verdict


def verdict(operation: Callable[..., object], *args: object) -> Verdict:
    """Run an operation and say whether it had an answer. The verdict is ok, or the reason and witness that it would
    raise."""
    try:
        operation(*args)
    except LayoutError as error:
        return Verdict(False, str(error), error.witness)
    return Verdict(True)


class Predicates(Function):
    """The predicates of a layout's partial operations. Each returns a Verdict: ok, reason, witness.

    The reason is the message that the operation raises, the witness the first coordinate that shows it, where one does.
    Statements about values are here too: Layout and ComposedLayout have them alike.
    """

    __slots__ = ()

    def covers(self, tile: object, given: object = ()) -> Answer:
        """Prove that every offset 0..size(tile)-1 is a value, at every size. `tile` is a shape or layout; see
        prove.covers

        >>> from layoutgemm import Layout
        >>> Layout((4, 8), (8, 1)).covers(32).ok, Layout((4, 8), (9, 1)).covers(32).coord
        (True, 8)
        """
        return registries.covering(self, tile, given)

    def disjoint(self, other: object, offset: object = 0, given: object = ()) -> Answer:
        """Prove that no value is offset + a value of `other`, at every size. See prove.disjoint.

        >>> from layoutgemm import Layout
        >>> Layout(4, 2).disjoint(Layout(4, 2), 1).ok, Layout(4, 2).disjoint(Layout(4, 2), 4).coord
        (True, (2, 0))
        """
        return registries.apart(self, other, offset, given)

    def can_compose(self, other: object) -> Verdict:
        """Verdict on compose(other)."""
        return self._can("compose", other)

    def can_complement(self, bound: object = None) -> Verdict:
        """Verdict on complement(bound)."""
        return self._can("complement", bound)

    def can_left_inverse(self) -> Verdict:
        """Verdict on left_inverse()."""
        return self._can("left_inverse")

    def can_divide(self, tiler: object) -> Verdict:
        """Verdict on logical_divide(tiler), and with it on every other divide."""
        return self._can("logical_divide", tiler)

    def can_product(self, tiler: object) -> Verdict:
        """Verdict on logical_product(tiler)."""
        return self._can("logical_product", tiler)

    def can_tile_to_shape(self, shape: object, order: object = None) -> Verdict:
        """Verdict on tile_to_shape(shape, order)."""
        return self._can("tile_to_shape", shape, order)

    def can_with_shape(self, *shape: object) -> Verdict:
        """Verdict on with_shape(shape)."""
        return self._can("with_shape", *shape)

    def can_upcast(self, n: int) -> Verdict:
        """Verdict on upcast(n)."""
        return self._can("upcast", n)

    def can_downcast(self, n: int) -> Verdict:
        """Verdict on downcast(n)."""
        return self._can("downcast", n)

    def can_recast(self, new_bits: int, old_bits: int) -> Verdict:
        """Verdict on recast(new_bits, old_bits)."""
        return self._can("recast", new_bits, old_bits)

    def _can(self, name: str, *args: object) -> Verdict:
        operation = getattr(self, name, None)
        if operation is None:
            return Verdict(False, f"{type(self).__name__} has no {name}")
        return verdict(operation, *args)
