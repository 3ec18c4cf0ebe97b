"""Tables of text for a terminal, a log or a docstring."""

from ...moved import old_names

__getattr__ = old_names(__name__)
