"""Products of packed weights with few rows: each warp has a stream of weights of its own."""
