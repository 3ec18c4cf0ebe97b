"""Epilogues: what happens to an accumulator on its way to C."""

from ...moved import old_names

__getattr__ = old_names(__name__)
