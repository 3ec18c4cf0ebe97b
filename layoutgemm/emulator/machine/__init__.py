"""The emulated GPU: CTAs, warps, memory and launches.

launch, interpreter   a launch and its order of execution; fibers of warps, and who runs next
gathering, roles      lanes that execute together; what a warp does
memory, local_memory, device_heap   global, shared and parameter memory; each thread's own; malloc in device code
tensor_map, textures  the 128 bytes of a tensor map; arrays that are addressed by coordinates
devices               several GPUs and the copies between them
deadlocks             the report of a deadlock
uninitialized, unwritten_memory   results that depend on registers or bytes that were never written
unused_reads          races of loads whose values affect no result
bank_counts, sector_counts   wavefronts of shared memory; sectors of global memory
last_writers          who wrote bytes that two orders of events leave different
timeline              activity of warps and engines
"""

from ...moved import old_names

__getattr__ = old_names(__name__)
