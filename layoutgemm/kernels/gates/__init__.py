"""Gates of a stored product, and their gradients. The plan of one small kernel, and the kernel in `device`."""
