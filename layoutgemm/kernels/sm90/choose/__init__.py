"""Which configuration runs a problem on Hopper, and why.

rules             the choice of a plain product: small_m up to 64 rows, else large_m; and whether A and B are swapped
small_m, large_m  estimates of time: tile, cluster, and when a split K pays
stages            stages and store buffers that fit into shared memory
scaled_grouped    scaled, grouped and gated products, and groups along K: tile, cluster and loader
prologue          products with a function of A's elements
reductions        what an epilogue's reductions of rows and columns cost; a split K's are in the estimates
occupancy         clusters that a GPU holds at a time
costs             the models' numbers, one JSON file a GPU
candidates        the configurations that `layoutgemm.tune` measures
"""
