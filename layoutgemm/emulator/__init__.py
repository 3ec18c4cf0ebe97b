"""A CPU emulator of compiled kernels. PTX and host function, with the atoms as instruction semantics."""
