"""Operands of 16 or 32 bits as 8-bit floats and scales. The plan of one small kernel, and the kernel in `device`."""
