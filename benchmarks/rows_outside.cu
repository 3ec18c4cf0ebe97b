// Cycles that a tensor copy of a box takes with some of its rows outside of the matrix, which arrive as zeros.
//
//     nvcc -gencode=arch=compute_90a,code=sm_90a -o rows_outside benchmarks/rows_outside.cu && ./rows_outside
//
// One thread of each block keeps eight boxes of 64 bf16 columns, swizzled by 128 bytes, in flight, walking along K, and
// waits for the oldest before it copies over it. Printed is the slowest block's mean, the best of three launches.
// benchmarks/NOTES.md, "Rows outside the matrix", says what came of it.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int kStages = 8, kBoxes = 2000, kRows = 408, kColumns = 4288, kSpan = 64, kLine = 128;

void check(int error, int line) {
  if (error != 0) {
    std::printf("error %d in line %d\n", error, line);
    std::exit(1);
  }
}
#define CHECK(call) check(static_cast<int>(call), __LINE__)

__device__ uint32_t shared(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__global__ void __launch_bounds__(32) copy(const __grid_constant__ CUtensorMap map, int rows, int first, long long* cycles) {
  extern __shared__ __align__(1024) char tiles[];
  __shared__ uint64_t full[kStages];
  if (threadIdx.x != 0) return;
  for (auto& barrier : full) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared(&barrier)));
  asm volatile("fence.mbarrier_init.release.cluster;");
  int stage = 0, parity = 1, k = blockIdx.x * 7 % (kColumns / kSpan);
  long long begun = 0;
  for (int i = 0; i < kBoxes + kStages; i++) {
    const uint32_t barrier = shared(&full[stage]);
    if (i >= kStages)
      asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again; }"
                   ::"r"(barrier), "r"(parity) : "memory");
    if (i == 2 * kStages) begun = clock64();
    if (i < kBoxes) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(rows * kLine) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                   ::"r"(shared(tiles) + stage * rows * kLine), "l"(&map), "r"(k * kSpan), "r"(first), "r"(barrier)
                   : "memory");
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
    if (++k == kColumns / kSpan) k = 0;
  }
  cycles[blockIdx.x] = clock64() - begun;
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

int main() {
  Encode encode;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000,
                                         cudaEnableDefault, &found));
  CHECK(cudaFuncSetAttribute(copy, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  uint16_t* matrix;
  long long* cycles;
  CHECK(cudaMalloc(&matrix, sizeof(*matrix) * kRows * kColumns));
  CHECK(cudaMemset(matrix, 1, sizeof(*matrix) * kRows * kColumns));
  CHECK(cudaMallocManaged(&cycles, sizeof(*cycles) * 256));
  for (int box : {64, 128}) {
    for (int blocks : {1, 32, 132}) {
      std::printf("%3d blocks, boxes of %3d rows; rows outside: cycles a box ", blocks, box);
      for (int outside : {0, 8, 16, 32, 64, 96, 104, 120, 128}) {
        if (outside > box) continue;
        CUtensorMap map;
        const cuuint64_t extents[] = {kColumns, kRows}, pitch[] = {sizeof(*matrix) * kColumns};
        const cuuint32_t boxes[] = {kSpan, static_cast<cuuint32_t>(box)}, steps[] = {1, 1};
        CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, extents, pitch, boxes, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
        double best = 1e9;
        for (int i = 0; i < 3; i++) {
          copy<<<blocks, 32, kStages * box * kLine>>>(map, box, kRows - box + outside, cycles);
          CHECK(cudaDeviceSynchronize());
          best = std::min(best, double(*std::max_element(cycles, cycles + blocks)) / (kBoxes - kStages));
        }
        std::printf(" %d: %.0f", outside, best);
      }
      std::printf("\n");
    }
  }
}
