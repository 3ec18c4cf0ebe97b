"""Shared-memory tiles and the descriptors that name them."""

from ...moved import old_names

__getattr__ = old_names(__name__)
