"""Benchmarks: interleaved timing against peers in one process."""
