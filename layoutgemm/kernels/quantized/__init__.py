"""Packed weights of 4 and 8 bits, on every architecture. Formats, conversions, the packed order and its proofs."""
