"""Triangular matrices in a Hopper kernel: operands whose zeros are skipped, and symmetric products."""
