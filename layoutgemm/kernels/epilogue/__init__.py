"""Epilogues: what happens to an accumulator on its way to C."""
