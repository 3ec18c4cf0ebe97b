"""PTX: parser, values and the Python generated from a kernel."""

from ...moved import old_names

__getattr__ = old_names(__name__)
