"""PTX that shows where wgmma reads an operand: the byte address of each element of A that a descriptor word names.

B is the identity, so D is A. Shared memory holds, at every 16-bit place, the place's own number: in bf16, its low byte
in one image and its high byte in another. Two runs give the address of every element that the hardware read. The kernel
takes pointers: the image, the word, D's registers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PLACES = 1 << 14  # 16-bit places that a word may reach: 32 KiB
N = K = 16  # of the instruction; M is 64
IMAGE_BYTES = 2 * PLACES + 4096
RESULT_BYTES = 64 * N * 4
# B: K-major without swizzle, core matrices 128 bytes apart along N and 256 along K, after the places
B_WORD = 128 >> 4 << 32 | 256 >> 4 << 16 | 2 * PLACES >> 4


def image(high: bool) -> npt.NDArray[np.uint16]:
    """Shared memory as bf16 bits: each place's number, its low or its high byte, then the identity as B."""
    place = np.arange(PLACES)
    values = np.zeros(IMAGE_BYTES // 2, dtype=np.float32)
    values[:PLACES] = place >> 8 if high else place & 255
    n = np.arange(N)
    values[PLACES + n // 8 * 64 + n // 8 * 128 + n % 8 * 9] = 1
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def addresses(low: npt.NDArray[np.float32], high: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """D's registers [thread, register] of both runs -> byte addresses [m, k] in PTX's fragment."""
    thread, register = np.arange(128)[:, None], np.arange(8)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2 % 2)
    column = 8 * (register // 4) + 2 * (thread % 4) + register % 2
    found = np.zeros((64, N), dtype=np.int64)
    found[row, column] = 2 * (low.astype(np.int64) + 256 * high.astype(np.int64))
    return found


def ptx(transpose_a: bool) -> str:
    """The kernel `read`: 128 threads, one wgmma."""
    registers = ", ".join(f"%f{i}" for i in range(8))
    stores = "\n".join(f"st.global.f32 [%d10+{4 * i}], %f{i};" for i in range(8))
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.shared .align 1024 .b8 memory[{IMAGE_BYTES}];
.visible .entry read(.param .u64 image, .param .u64 word, .param .u64 result) {{
.reg .pred %p<3>;
.reg .b32 %r<7>;
.reg .b64 %d<11>;
.reg .f32 %f<8>;
ld.param.u64 %d1, [image];
ld.param.u64 %d2, [result];
ld.param.u64 %d3, [word];
ld.global.u64 %d3, [%d3];
mov.u32 %r1, %tid.x;
mov.u32 %r2, memory;
mov.u32 %r3, %r1;
copy:
mul.wide.u32 %d4, %r3, 4;
add.u64 %d5, %d1, %d4;
ld.global.u32 %r4, [%d5];
shl.b32 %r5, %r3, 2;
add.u32 %r5, %r5, %r2;
st.shared.u32 [%r5], %r4;
add.u32 %r3, %r3, 128;
setp.lt.u32 %p1, %r3, {IMAGE_BYTES // 4};
@%p1 bra copy;
fence.proxy.async;
bar.sync 0;
shr.u32 %r6, %r2, 4;
cvt.u64.u32 %d6, %r6;
add.u64 %d7, %d3, %d6;
add.u64 %d8, %d6, {B_WORD};
setp.ne.b32 %p2, 0, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{registers}}}, %d7, %d8, %p2, 1, 1, {int(transpose_a)}, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %d9, %r1, 32;
add.u64 %d10, %d2, %d9;
{stores}
ret;
}}
"""
