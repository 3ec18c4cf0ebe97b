"""Copies between memories: bulk, cp.async, TMA and ldmatrix."""
