"""Blackwell's tensor core and tensor memory: tcgen05."""

from ....moved import old_names

__getattr__ = old_names(__name__)
