"""Layouts from texts of other notations than CuTe's: C++ and calls, Triton, torch, NumPy, MLIR."""
