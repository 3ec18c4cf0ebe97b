"""Weights of 4 and 8 bits: formats, packing, conversions, and the plan's packed operand."""
