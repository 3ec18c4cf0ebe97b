"""The GEMM for Blackwell: tcgen05 and tensor memory.

Where to look, by question:

plan, choose       the plan: every derived object; which tile runs a problem, by arithmetic
store              how C leaves tensor memory
fragment           the values of the accumulator that a thread stores
pipeline_model     the pipeline that the checks prove: who waits for which barrier
block_scales       scales of MXFP8, MXF8F6F4, MXFP4, NVFP4: their order in memory, shared memory and tensor memory
rows               rows of A or C by index
promoted           main loops that promote K blocks; groups are in `kernels.grouped`
checks, scale_checks, store_checks, rows_checks   the plan's claims against its objects
explain, reference   the plan as text, and executed in NumPy
device             what imports cutlass: the kernel
"""
