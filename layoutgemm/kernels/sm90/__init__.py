"""The GEMM for Hopper: wgmma, TMA and clusters.

Where to look, by question:

config             what describes a kernel, and its tuning knobs; the registers that setmaxnreg asks for
choose             which configuration runs a problem: tile, cluster, stages, split K
request, types     a plan's arguments, read and refused; the types of A, B and C
plan               the plan: every derived object, and the arrive counts and bytes of the stages' barriers
multicast          which CTA of a cluster sends which share of A and B; the boxes of B's columns
edges              boxes of the rows that an edge tile has
smem               the shared memory map, and the stages' bytes; the exchange of a split K's partial sums
named_barriers     ids and thread counts of named barriers
pipeline_model     the pipeline that the checks prove: who waits for which barrier
checks, budget_checks, store_checks   the plan's claims against its objects
explain, reference   the plan as text, and executed in NumPy
device             what imports cutlass: the kernel, and the other kernels made of it

Variants of a product, each with its checks:

grouped, along_k   ragged rows of groups; groups along K
mainloop           promoted sums and scales
shards             overlap with communication
indexed            gathered and scattered rows
operands           a prologue, row sums, numbers of a stage; several B and pairs are in `kernels.operands`
quantized          packed weights
triangular         skipped zeros, symmetric products
"""
