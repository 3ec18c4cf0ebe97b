"""Mutants of a kernel: which ones the emulator notices."""
