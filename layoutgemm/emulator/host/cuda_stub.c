/* Stands in for the CUDA runtime under the host half of a compiled kernel: tells of launches, runs nothing.

   The names are those that objects exported by the CuTe DSL leave undefined. `layoutgemm_encode` and `layoutgemm_launch`
   are set by host.py. Everything else succeeds and answers as an idle GPU of the kernel's architecture would. */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*encode_function)(void *map, int type, uint32_t rank, uint64_t address, const uint64_t *dims,
                               const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                               int swizzle, int l2, int oob);
typedef int (*launch_function)(const uint32_t *grid, const uint32_t *block, const uint32_t *cluster, uint64_t shared,
                               const char *kernel, void **arguments, int cooperative, int dependent);
encode_function layoutgemm_encode;
launch_function layoutgemm_launch;
int32_t layoutgemm_multiprocessors, layoutgemm_shared_opt_in;

/* cuTensorMapEncodeTiled, CUDA Driver API. */
int _cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int l2, int oob) {
  return layoutgemm_encode(map, type, rank, (uint64_t)(uintptr_t)address, dims, strides, box, steps, interleave, swizzle,
                           l2, oob);
}

/* cudaLaunchConfig_t and cudaLaunchAttribute, driver_types.h: an attribute is 8 bytes of kind and 64 of value. */
struct attribute {
  int32_t kind, padding;
  uint32_t value[16];
};
struct launch {
  uint32_t grid[3], block[3];
  size_t shared;
  void *stream;
  const struct attribute *attributes;
  uint32_t count;
};
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 }; /* cudaLaunchAttributeID */

int _cudaLaunchKernelEx(const struct launch *launch, const void *kernel, void **arguments) {
  uint32_t cluster[3] = {1, 1, 1};
  int cooperative = 0, dependent = 0;
  for (uint32_t i = 0; i < launch->count; i++) {
    if (launch->attributes[i].kind == CLUSTER_DIMENSION)
      memcpy(cluster, launch->attributes[i].value, sizeof cluster);
    if (launch->attributes[i].kind == COOPERATIVE)
      cooperative = launch->attributes[i].value[0] != 0;
    if (launch->attributes[i].kind == PROGRAMMATIC_STREAM_SERIALIZATION)
      dependent = launch->attributes[i].value[0] != 0;
  }
  return layoutgemm_launch(launch->grid, launch->block, cluster, launch->shared, kernel, arguments, cooperative,
                           dependent);
}

int _cudaLaunchKernel(const void *kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                      void **arguments, size_t shared, void *stream) {
  uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz}, cluster[3] = {1, 1, 1};
  (void)stream;
  return layoutgemm_launch(grid, block, cluster, shared, kernel, arguments, 0, 0);
}

/* A kernel's handle is a copy of its name, which the caller builds on its stack. */
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  *kernel = strdup(name);
  return *kernel == NULL;
}

int _cudaLibraryLoadData(void **library) {
  static int loaded;
  *library = &loaded;
  return 0;
}

enum { MULTIPROCESSORS = 16, SHARED_OPT_IN = 97 }; /* cudaDeviceAttr */
int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == MULTIPROCESSORS ? layoutgemm_multiprocessors
           : attribute == SHARED_OPT_IN ? layoutgemm_shared_opt_in
                                        : 0;
  return 0;
}

int _cudaSetDevice(int device) { return (void)device, 0; }
int _cudaGetDevice(int *device) { return *device = 0; }
int _cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int _cuKernelGetAttribute(int *value) { return *value = 0; }
int _cudaFuncSetAttribute(void) { return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) { return *blocks = 1, 0; }
int _cudaDeviceSynchronize(void) { return 0; }
int _cudaStreamSynchronize(void) { return 0; }
int _cudaGetLastError(void) { return 0; }
int _cudaPeekAtLastError(void) { return 0; }
/* TVM-FFI's entry calls this first: the kernels' handles are asked for once. */
typedef int (*init_function)(void **library);
typedef int (*load_function)(void **library, int device);
int cuda_dialect_init_library_once(void **library, init_function init, load_function load, void *raise) {
  int failed;
  (void)raise;
  if (*library != NULL)
    return 0;
  failed = init(library);
  return failed ? failed : load(library, 0);
}
void cuda_dialect_unload_library_once(void *library) { (void)library; }
const char *cuda_dialect_get_error_name(int error) { return (void)error, "an error of the emulated runtime"; }

typedef void (*raise_function)(const char *kind, const char **parts, int32_t count);
void CuteDSLRT_TVMFFISetRaisedCudaError(raise_function raise, int32_t error) {
  const char *parts[1] = {"the host function failed"};
  (void)error, raise("RuntimeError", parts, 1);
}
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(raise_function raise) {
  CuteDSLRT_TVMFFISetRaisedCudaError(raise, 1);
}

void cuda_dialect_assert_success(int error) { (void)error; }
