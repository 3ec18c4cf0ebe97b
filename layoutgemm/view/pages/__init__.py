"""Linked HTML pages: an element under the pointer lights up everywhere it lies."""
