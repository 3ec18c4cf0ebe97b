"""The ladder: kernels from the simplest to the fastest, one idea each."""
