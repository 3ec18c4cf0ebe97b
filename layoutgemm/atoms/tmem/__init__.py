"""Tensor memory of Blackwell: addresses and accumulator fragments."""

from ...moved import old_names

__getattr__ = old_names(__name__)
