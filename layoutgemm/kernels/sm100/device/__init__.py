"""Device code of the Blackwell GEMM."""
