"""Running a plan on a GPU, in the emulator or in NumPy.

Operands       operand_checks: kind, layout, device, shared memory of a call's tensors; arrays, numpy_arrays: NumPy's;
               tensor_maps, ampere: which pitch and address a kernel reads, and copies of other ones; epilogue_operands
Places         cpu: NumPy's executor and the emulator; emulated: a compiled kernel on the CPU; torch_tensors: a GPU
Variants       fused: with an epilogue; quantized: packed weights; partial: C of which some tiles are stored
What came out  result; records: bank counts and a timeline; error_bound: the rounding error that is allowed
The GPU        occupancy: resident clusters by the driver; stream_memory: writes and waits of a stream; capture: memory
               that outlives a CUDA graph; hardware_model: barriers, TMA, wgmma and stmatrix in NumPy, for executors
"""
