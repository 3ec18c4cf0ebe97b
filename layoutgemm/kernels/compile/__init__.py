"""Compilation of plans, in a worker process, with a cache on disk."""
