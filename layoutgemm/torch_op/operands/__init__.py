"""matmul of several matrices B, and of two pairs."""
