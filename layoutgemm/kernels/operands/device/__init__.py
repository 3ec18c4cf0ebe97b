"""Device code of operands that kernels of several architectures share."""
