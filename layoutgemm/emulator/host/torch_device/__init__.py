"""Torch's "cuda" device without a GPU: tensors, products, streams, memory and answers."""
