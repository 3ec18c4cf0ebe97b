"""The GEMM for Ampere and later GPUs with mma.sync."""
