"""The emulated GPU: CTAs, warps, memory and launches."""

from ...moved import old_names

__getattr__ = old_names(__name__)
