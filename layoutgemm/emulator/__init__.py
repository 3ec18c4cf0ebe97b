"""Executes compiled kernels on the CPU: PTX and host function, with the atoms as the semantics of instructions."""
