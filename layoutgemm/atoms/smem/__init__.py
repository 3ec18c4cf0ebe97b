"""Shared-memory tiles and the descriptors that name them."""
