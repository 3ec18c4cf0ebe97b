"""The GEMM for Blackwell: tcgen05 and tensor memory."""
