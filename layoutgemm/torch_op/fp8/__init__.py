"""layoutgemm.quantize."""
