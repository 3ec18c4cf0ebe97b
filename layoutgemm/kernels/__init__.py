"""GEMM kernels: plans that derive and check everything, and the kernels that read them."""

from ..moved import old_names
from .derive import Operand
from .plan import GemmPlan
from .planner import plan
from .run.error_bound import error_bound
from .run.result import GemmResult
from .sm80.plan import Sm80Config, Sm80Plan
from .sm90.along_k import AlongK
from .sm90.config import Sm90Tuning
from .sm90.grouped import Ragged
from .sm90.mainloop import Promoted, Table
from .sm90.plan import Sm90Config, Sm90Plan
from .sm100.plan import Sm100Config, Sm100Plan
from .teaching.plan import TeachingConfig, TeachingPlan

__all__ = [
    "AlongK",
    "GemmPlan",
    "GemmResult",
    "Operand",
    "Promoted",
    "Ragged",
    "Sm80Config",
    "Sm80Plan",
    "Sm90Config",
    "Sm90Plan",
    "Sm90Tuning",
    "Sm100Config",
    "Sm100Plan",
    "Table",
    "TeachingConfig",
    "TeachingPlan",
    "error_bound",
    "plan",
]

__getattr__ = old_names(__name__)
