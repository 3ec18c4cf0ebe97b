"""The Python of each scalar instruction: functions of the code generator that return an expression."""

from . import comparisons, conversions, float_arithmetic, integer_arithmetic, moves, video  # noqa: F401  (they register)
