// nvcc -arch=sm_90a -ptx device_functions.cu
#include <cassert>
#include <cstdio>

__constant__ float coefficients[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ int counter = 5;
__device__ const char *names[2] = {"even", "odd"};
__device__ short table[2][3] = {{1, 2, 3}, {-4, 5}};

struct Pair {
  int a;
  double b;
};

__device__ __noinline__ float polynomial(float x, const float *k) {
  float sum = 0;
  for (int i = 0; i < 4; i++) sum = sum * x + k[i];
  return sum;
}
__device__ __noinline__ Pair pair_of(int i) { return Pair{2 * i, i * 0.25}; }
__device__ __noinline__ void exchange(int *a, int *b) {
  int t = *a;
  *a = *b;
  *b = t;
}
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void functions(float *x, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  float own[8];
  for (int j = 0; j < 8; j++) own[j] = x[i] + j;
  int u = i, v = 100 + i;
  if (i % 3) exchange(&u, &v);
  Pair p = pair_of(v);
  x[i] = polynomial(x[i], coefficients) + own[(i * 3) & 7] + p.a + (float)p.b + u + table[i & 1][i % 3];
  atomicAdd(&counter, 1);
}
extern "C" __global__ void prints(int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) printf("%d is %s: %5.2f %lld%%\n", i, names[i & 1], i * 0.5, (long long)i << 33);
}
extern "C" __global__ void asserts(int *x) { assert(x[threadIdx.x] < 3); }
extern "C" __global__ void recurses(int *x) { x[threadIdx.x] = fibonacci(x[threadIdx.x]); }
extern "C" __global__ void exponential(float *x) { x[threadIdx.x] = expf(x[threadIdx.x]); }
