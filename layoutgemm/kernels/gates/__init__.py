"""Gates of a stored product, and their gradients: the plan of one small kernel, and the kernel in `device`."""
