"""The GEMM for Hopper: wgmma, TMA and clusters."""
