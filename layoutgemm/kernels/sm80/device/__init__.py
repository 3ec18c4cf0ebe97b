"""Device code of the mma.sync GEMM."""
