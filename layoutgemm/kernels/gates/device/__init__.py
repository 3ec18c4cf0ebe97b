"""Device code of the kernel of gates."""
