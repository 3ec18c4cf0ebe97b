"""A configuration of several launches of a product with packed weights. Each computes a part of the output features."""

from __future__ import annotations

from dataclasses import dataclass

from ....arguments import shown
from ....errors import PlanError
from ...quantized.formats import UNIT_ROWS
from ..config import Sm90Config


@dataclass(frozen=True)
class FeatureParts:
    """Launches of one product with packed weights, each of a part of the output features.

    152 tiles of 192x256 are two rounds of 132 SMs. As two launches 132 of them are one round, and the other features
    take smaller tiles.

    parts  (output features, Sm90Config) of each launch, first features first. All but the last are multiples of 64,
           the features of a packed unit; together they are the weights'

    Raises PlanError, naming the part, for anything else, and where some scales multiply sums and others weights.

    >>> small, wide = Sm90Config((128, 128)), Sm90Config((192, 256), tile_k=64, consumers=3)
    >>> FeatureParts(((832, small), (6336, wide))).features
    7168
    >>> FeatureParts(((800, small), (6368, wide)))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: part 0 has 800 output features: a multiple of 64, as a packed unit has
    """

    parts: tuple[tuple[int, Sm90Config], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) < 2:
            raise PlanError(f"parts = {shown(self.parts)}: a tuple of two or more (output features, Sm90Config)")
        for number, part in enumerate(self.parts):
            if not isinstance(part, tuple) or len(part) != 2 or not isinstance(part[1], Sm90Config):
                raise PlanError(f"part {number} is {shown(part)}: a tuple (output features, Sm90Config)")
            count = part[0]
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise PlanError(f"part {number} has {shown(count)} output features: an int of at least 1")
            if count % UNIT_ROWS and number < len(self.parts) - 1:
                raise PlanError(
                    f"part {number} has {count} output features: a multiple of {UNIT_ROWS}, as a packed unit has"
                )
        scales = [config.tuning.scales for _, config in self.parts]
        if len({*scales}) > 1:
            raise PlanError(f"scales of the parts multiply {', '.join(scales)}: those of one product multiply the same")

    @property
    def features(self) -> int:
        """Output features of all parts."""
        return sum(count for count, _ in self.parts)

    def check_features(self, n: int) -> None:
        """Raise PlanError unless the parts are those of n output features."""
        if self.features != n:
            said = " + ".join(str(count) for count, _ in self.parts)
            raise PlanError(f"the parts have {said} = {self.features} output features, and the weights {n}")


@dataclass(frozen=True)
class PartsChoice:
    """Several launches, among the configurations that were measured for a product."""

    config: FeatureParts
