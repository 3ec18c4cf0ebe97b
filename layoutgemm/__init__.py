"""layoutgemm: a CuTe-style layout algebra in plain Python, whose objects are the ones the GEMM kernels run on.

>>> from layoutgemm import Layout
>>> tile = Layout((8, 16), (16, 1))
>>> tile(3, 5), str(tile.zipped_divide((4, 4)))
(53, '((4,4),(2,4)):((16,1),(64,4))')
"""

from .errors import (
    AtomError,
    BudgetError,
    CompositionError,
    CoordinateError,
    DescriptorError,
    LayoutError,
    OperandError,
    ParseError,
    PlanError,
    SwizzleError,
    TmaError,
)
from .layouts import (
    ComposedLayout,
    CounterExample,
    E,
    Layout,
    Proof,
    ScaledBasis,
    Swizzle,
    Undecided,
    Verdict,
    parse,
)

__version__ = "0.1.0"

__all__ = [
    "AtomError",
    "BudgetError",
    "ComposedLayout",
    "CompositionError",
    "CoordinateError",
    "CounterExample",
    "DescriptorError",
    "E",
    "Layout",
    "LayoutError",
    "OperandError",
    "ParseError",
    "PlanError",
    "Proof",
    "ScaledBasis",
    "Swizzle",
    "SwizzleError",
    "TmaError",
    "Undecided",
    "Verdict",
    "__version__",
    "parse",
]
