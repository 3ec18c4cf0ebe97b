"""GEMM kernels: plans that derive and check everything, and the kernels that read them."""

from .plan import GemmConfig, GemmPlan, Operand
from .run import GemmResult, error_bound

__all__ = ["GemmConfig", "GemmPlan", "GemmResult", "Operand", "error_bound"]
