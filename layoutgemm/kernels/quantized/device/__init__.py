"""Device code: the kernel that unpacks weights."""
