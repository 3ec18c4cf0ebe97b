"""GEMM kernels: plans that derive and check everything, and the kernels that read them."""

from .derive import Operand
from .run.numpy_arrays import GemmResult, error_bound
from .sm80.plan import Sm80Config, Sm80Plan
from .sm90.grouped import Ragged
from .sm90.mainloop import Promoted, Table
from .sm90.plan import Sm90Config, Sm90Plan
from .sm100.plan import Sm100Config, Sm100Plan
from .teaching.plan import GemmConfig, GemmPlan

__all__ = [
    "GemmConfig",
    "GemmPlan",
    "GemmResult",
    "Operand",
    "Promoted",
    "Ragged",
    "Sm80Config",
    "Sm80Plan",
    "Sm90Config",
    "Sm90Plan",
    "Sm100Config",
    "Sm100Plan",
    "Table",
    "error_bound",
]
