"""Running a plan on a GPU, in the emulator or in NumPy."""
