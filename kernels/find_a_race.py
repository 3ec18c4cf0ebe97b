"""The emulator finds a race that a GPU may hide. A barrier between two warps is missing.

python kernels/find_a_race.py

Each thread writes a value to shared memory and reads the value of a thread in the other warp. The kernel is PTX.
`layoutgemm.emulate(compiled, a, b, c)` does the same for a compiled CuTe DSL function.
"""

import numpy as np

from layoutgemm import emulate_ptx

KERNEL = """
.version 8.7
.target sm_90a
.visible .entry exchange(.param .u64 out)
{
  .reg .b32 %r<6>; .reg .b64 %d<3>;
  .shared .align 16 .b8 tile[256];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, tile;
  mad.lo.u32 %r2, %r0, 4, %r1;      // where this thread writes
  xor.b32 %r3, %r0, 32;
  mad.lo.u32 %r4, %r3, 4, %r1;      // where a thread of the other warp does
  st.shared.b32 [%r2], %r0;
  bar.sync 0;
  ld.shared.b32 %r5, [%r4];
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d0, %d0, %d1;
  st.global.b32 [%d0], %r5;
  ret;
}
"""

for title, text in (("with the barrier", KERNEL), ("without it", KERNEL.replace("  bar.sync 0;\n", ""))):
    out = np.zeros(64, np.uint32)
    done = emulate_ptx(text, block=64, args=[out])
    right = np.array_equal(out, np.arange(64) ^ 32)
    print(f"{title}: the result is {'right' if right else 'wrong'}, {len(done.findings)} finding(s)")
    for finding in done.findings:
        print(f"  {finding}")
