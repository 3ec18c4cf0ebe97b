"""Forward-mode derivatives: numbers that carry their slopes by the model's constants.

    >>> import numpy as np
    >>> x, y = Slope(3.0, np.array([1.0, 0.0])), Slope(2.0, np.array([0.0, 1.0]))
    >>> z = max(1.0, x**2 * (1 + y) / 4)
    >>> z.value, z.slopes.tolist()
    (6.75, [4.5, 2.25])

Formulas written for floats return a value with its slopes. Where a formula takes a maximum, the slope is that of the
larger argument. torch scalars do not work here, since the model's formulas modify numbers in place and compare them.
"""

from __future__ import annotations

import math
from typing import Any


class Slope:
    """A number with an array of slopes by constant."""

    __slots__ = ("slopes", "value")

    def __init__(self, value: float, slopes: Any) -> None:
        self.value, self.slopes = value, slopes

    def __add__(self, other: Any) -> Slope:
        if isinstance(other, Slope):
            return Slope(self.value + other.value, self.slopes + other.slopes)
        return Slope(self.value + other, self.slopes)

    def __sub__(self, other: Any) -> Slope:
        return self + -1 * other

    def __rsub__(self, other: Any) -> Slope:
        return -1 * self + other

    def __mul__(self, other: Any) -> Slope:
        if isinstance(other, Slope):
            return Slope(self.value * other.value, self.slopes * other.value + other.slopes * self.value)
        return Slope(self.value * other, self.slopes * other)

    def __truediv__(self, other: Any) -> Slope:
        return self * other**-1

    def __rtruediv__(self, other: Any) -> Slope:
        return self**-1 * other

    def __pow__(self, other: Any) -> Slope:
        """The power; needs a positive base, or an exponent without slopes."""
        if isinstance(other, Slope):
            found = self.value**other.value
            by_base = other.value * found / self.value
            return Slope(found, self.slopes * by_base + other.slopes * (found * math.log(self.value)))
        return Slope(self.value**other, self.slopes * (other * self.value ** (other - 1)))

    def __rpow__(self, other: float) -> Slope:
        found = other**self.value
        return Slope(found, self.slopes * (found * math.log(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < (other.value if isinstance(other, Slope) else other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > (other.value if isinstance(other, Slope) else other))
