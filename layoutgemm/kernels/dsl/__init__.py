"""The bridge to the CuTe DSL: every use of an instruction is spelled here.

bridge            the names that kernels use, gathered from the files below
types, entry      element types and traced values; the host's entry and the launch parameters
sync, flags       mbarriers, named and cluster barriers, setmaxnreg, dependent launch; flags in global memory
copies            tensor maps, TMA loads and stores, multicast, bulk copies
wgmma, tcgen05    matrix products of warpgroups, and of Blackwell with its tensor memory
warp, ampere      mma.sync, ldmatrix, cp.async; cp.async of any width, for the Ampere kernels
registers         conversion in pairs, stmatrix, stores
math, tables      f32 arithmetic, loads of values and pairs, atomics; words of tables
group_table       the tables of groups that each block makes in shared memory
fused, reductions  an epilogue's steps on accumulators, and its reductions
added_rows        rows added to those that indices name, by a launch of its own
fp8, packed_weights  conversions of 8-bit floats; of packed weights, and wgmma with A in registers
"""
