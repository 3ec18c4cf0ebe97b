"""GEMM kernels: plans that derive and check everything, and the kernels that read them."""

from .plan import GemmConfig, GemmPlan, Operand
from .run import GemmResult, error_bound
from .sm80_plan import Sm80Config, Sm80Plan
from .sm90_mainloop import Promoted, Table
from .sm90_plan import Sm90Config, Sm90Plan
from .sm90_ragged import Ragged
from .sm100_plan import Sm100Config, Sm100Plan

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
