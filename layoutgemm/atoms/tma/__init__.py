"""TMA boxes, tensor maps and multicast, derived from a tile."""

from ...moved import old_names

__getattr__ = old_names(__name__)
