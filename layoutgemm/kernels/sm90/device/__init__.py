"""Device code of the Hopper GEMM.

gemm                    the kernel: roles, main loop, pingpong and cooperative consumers
loads                   the loader: waits for free stages, TMA loads, multicast
epilogue, fused         the end of a tile, split-K exchange and store; with a chain of steps
matrices, mirror        matrices that an epilogue reads; a symmetric product's second store
promoted                each K block in registers of its own, then added with its scales
group_scales            scales of groups of a transposed product's rows
prologue                A computed in registers before it is multiplied
grouped                 ragged rows of groups
along_k                 groups along K
indexed, row_copy       gathered and scattered rows; rows copied before the product
row_sums                sums of A's rows beside the product
quantized, experts      packed weights, and those of several experts
strips                  packed weights in tiles of strips of 16 features
shards                  products that overlap with communication
"""
