"""Layouts whose extents and strides are symbols, and the facts known about them."""
