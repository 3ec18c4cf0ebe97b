"""Device code of the kernel that quantises."""
