"""MMA atoms: the thread-value layouts of A, B and C."""

from ...moved import old_names

__getattr__ = old_names(__name__)
