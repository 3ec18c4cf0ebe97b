"""Packed weights of 4 and 8 bits as B of the mma.sync kernel."""
