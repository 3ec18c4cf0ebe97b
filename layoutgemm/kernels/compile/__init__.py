"""Compilation of plans, in a worker process, with a cache on disk."""

from ...moved import old_names

__getattr__ = old_names(__name__)
