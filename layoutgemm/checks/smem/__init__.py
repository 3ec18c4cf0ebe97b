"""Bank conflicts of shared-memory accesses, and swizzles without any."""
