"""Products of packed weights with few rows. Each warp has a stream of weights of its own."""
