"""The host function of a compiled kernel, run above a stub of the CUDA runtime."""

from ...moved import old_names

__getattr__ = old_names(__name__)
