"""A CUDA C++ kernel in the emulator. It is the PTX of nvcc, with a constant array and printf.

python kernels/emulate_cuda.py

`nvcc -arch=sm_90a -ptx scale.cu` gave KERNEL from

    __constant__ float weights[4] = {1.0f, 0.5f, 0.25f, 0.125f};
    extern "C" __global__ void scale(float *x, int n) {
      int i = threadIdx.x + blockIdx.x * blockDim.x;
      if (i >= n) return;
      x[i] *= weights[i & 3];
      if (x[i] < 0) printf("element %d is %g\\n", i, x[i]);
    }

The text of printf comes when the kernel has ended, by block and thread. `variables` gives other content to the module's
variables, as cudaMemcpyToSymbol does.
"""

import numpy as np

from layoutgemm import emulate_ptx

KERNEL = """
.version 9.0
.target sm_90a
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf
(
 .param .b64 vprintf_param_0,
 .param .b64 vprintf_param_1
)
;
.const .align 4 .b8 weights[16] = {0, 0, 128, 63, 0, 0, 0, 63, 0, 0, 128, 62, 0, 0, 0, 62};
.global .align 1 .b8 $str[18] = {101, 108, 101, 109, 101, 110, 116, 32, 37, 100, 32, 105, 115, 32, 37, 103, 10};
.visible .entry scale(
 .param .u64 scale_param_0,
 .param .u32 scale_param_1
)
{
 .local .align 16 .b8 __local_depot0[16];
 .reg .b64 %SP;
 .reg .b64 %SPL;
 .reg .pred %p<3>;
 .reg .f32 %f<4>;
 .reg .b32 %r<8>;
 .reg .f64 %fd<2>;
 .reg .b64 %rd<13>;
 mov.u64 %SPL, __local_depot0;
 cvta.local.u64 %SP, %SPL;
 ld.param.u64 %rd1, [scale_param_0];
 ld.param.u32 %r2, [scale_param_1];
 mov.u32 %r3, %ntid.x;
 mov.u32 %r4, %ctaid.x;
 mov.u32 %r5, %tid.x;
 mad.lo.s32 %r1, %r4, %r3, %r5;
 setp.ge.s32 %p1, %r1, %r2;
 @%p1 bra $L__BB0_3;
 cvta.to.global.u64 %rd2, %rd1;
 shl.b32 %r6, %r1, 2;
 cvt.u64.u32 %rd3, %r6;
 and.b64 %rd4, %rd3, 12;
 mov.u64 %rd5, weights;
 add.s64 %rd6, %rd5, %rd4;
 mul.wide.s32 %rd7, %r1, 4;
 add.s64 %rd8, %rd2, %rd7;
 ld.global.f32 %f2, [%rd8];
 ld.const.f32 %f3, [%rd6];
 mul.f32 %f1, %f3, %f2;
 st.global.f32 [%rd8], %f1;
 setp.geu.f32 %p2, %f1, 0f00000000;
 @%p2 bra $L__BB0_3;
 add.u64 %rd9, %SP, 0;
 add.u64 %rd10, %SPL, 0;
 st.local.u32 [%rd10], %r1;
 cvt.f64.f32 %fd1, %f1;
 st.local.f64 [%rd10+8], %fd1;
 mov.u64 %rd11, $str;
 cvta.global.u64 %rd12, %rd11;
 { // callseq 0, 0
 .reg .b32 temp_param_reg;
 .param .b64 param0;
 st.param.b64 [param0+0], %rd12;
 .param .b64 param1;
 st.param.b64 [param1+0], %rd9;
 .param .b32 retval0;
 call.uni (retval0),
 vprintf,
 (
 param0,
 param1
 );
 ld.param.b32 %r7, [retval0+0];
 } // callseq 0
$L__BB0_3:
 ret;
}
"""

x = np.arange(-2, 40, dtype=np.float32)
expected = x * np.array([1, 0.5, 0.25, 0.125], np.float32)[np.arange(x.size) % 4]
done = emulate_ptx(KERNEL, grid=2, block=32, args=[x, x.size])
assert done.ok and (x == expected).all()
assert done.launches[0].printed == "element 0 is -2\nelement 1 is -0.5\n"

ones = np.arange(8, dtype=np.float32)
emulate_ptx(KERNEL, block=32, args=[ones, ones.size], variables={"weights": np.ones(4, np.float32)})
assert ones.tolist() == list(range(8))
print(f"{x.size} elements are right, in {done.launches[0].seconds * 1000:.0f} ms")
