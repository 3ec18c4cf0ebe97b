"""MMA atoms: the thread-value layouts of A, B and C."""
