"""The GEMM for Ampere and later GPUs with mma.sync.

plan, choose, explain      the objects of a kernel, its configuration, and both in words
operand, fragment, store   tiles and copies, accumulators, and the way of C
groups, promoted           groups of rows and of K, and scales of K blocks
block_scales               factors of A and B for a few elements of K each; scale_checks, scale_reference
narrow                     operands of 6 and 4 bits in bytes
checks, store_checks       proofs;   pipeline   the ring's model
reference                  the NumPy executor
quantized, device          packed weights, and device code
"""
