"""Tiled MMAs and tiled copies: atoms repeated over the threads of a CTA."""
