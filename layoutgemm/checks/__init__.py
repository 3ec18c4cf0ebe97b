"""Checks of plans: every statement with its verdict, its method, and its first counterexample."""

from .budgets import registers, shared_memory
from .report import Check, Report
from .tiles import bijective_tile, filled_by, read_by

__all__ = ["Check", "Report", "bijective_tile", "filled_by", "read_by", "registers", "shared_memory"]
