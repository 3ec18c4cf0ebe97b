"""Derivatives of eager products: which products they are, and their launches, kept for the next backward pass."""
