"""Device code of the Hopper GEMM."""
