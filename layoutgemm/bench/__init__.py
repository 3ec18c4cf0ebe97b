"""Benchmarks: interleaved timing against peers in one process."""

from ..moved import old_names

__getattr__ = old_names(__name__)
