"""Derivatives of eager products. Which products they are, and their launches, kept for the next backward pass."""
