"""Tensor memory of Blackwell: addresses and accumulator fragments."""
