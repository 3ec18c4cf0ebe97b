"""Device code of kernels with packed weights."""
