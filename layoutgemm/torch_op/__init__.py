"""The torch operators: matmul, gemm, scaled_matmul and grouped_matmul."""

from ..moved import old_names
from .explain import explain_matmul
from .operator import gemm, matmul
from .scaled_grouped import grouped_matmul, scaled_matmul
from .tuning import tune

__all__ = ["explain_matmul", "gemm", "grouped_matmul", "matmul", "scaled_matmul", "tune"]

__getattr__ = old_names(__name__)
