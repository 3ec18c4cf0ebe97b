"""Running a plan on a GPU, in the emulator or in NumPy."""

from ...moved import old_names

__getattr__ = old_names(__name__)
