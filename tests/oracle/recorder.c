/* Stands in for the CUDA runtime under the host half of a compiled kernel: records what it is asked for, launches nothing.
   The names are those that the CuTe DSL's exported objects leave undefined. Records are JSON objects, one a line. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char text[1 << 16];
static size_t used;
#define SAY(...) (used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__))
#define LIST(name, type, count, values)                                                      \
  do {                                                                                       \
    SAY(", \"" name "\": [");                                                                \
    for (uint32_t i = 0; i < (count); i++)                                                   \
      SAY("%s%llu", i ? ", " : "", (unsigned long long)((const type *)(values))[i]);         \
    SAY("]");                                                                                \
  } while (0)

const char *recorded(void) { return text; }
void forget(void) { text[used = 0] = 0; }

/* cuTensorMapEncodeTiled, CUDA driver API. The map itself is left zero. */
int _cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,
                            const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2, int oob) {
  memset(map, 0, 128);
  SAY("{\"call\": \"encode\", \"type\": %d, \"rank\": %u, \"address\": %llu", type, rank, (unsigned long long)(uintptr_t)address);
  LIST("dims", uint64_t, rank, dims);
  LIST("strides", uint64_t, rank - 1, strides);
  LIST("box", uint32_t, rank, box);
  LIST("steps", uint32_t, rank, steps);
  SAY(", \"interleave\": %d, \"swizzle\": %d, \"l2\": %d, \"oob\": %d}\n", interleave, swizzle, l2, oob);
  return 0;
}

struct launch {
  uint32_t grid[3], block[3];
  size_t shared;
  void *stream, *attributes;
  unsigned count;
};

/* cudaLaunchKernelExC. `map` is the kernel's first parameter, 128 bytes of a tensor map as 32-bit words. */
int _cudaLaunchKernelEx(const struct launch *config, const void *kernel, void **arguments) {
  (void)kernel;
  SAY("{\"call\": \"launch\", \"shared\": %zu, \"stream\": %llu", config->shared, (unsigned long long)(uintptr_t)config->stream);
  LIST("grid", uint32_t, 3, config->grid);
  LIST("block", uint32_t, 3, config->block);
  LIST("map", uint32_t, 32, arguments[0]);
  SAY("}\n");
  return 0;
}

/* The rest succeeds and does nothing. */
int _cudaLibraryLoadData(void) { return 0; }
int _cudaLibraryGetKernel(void) { return 0; }
int _cudaGetDevice(int *device) { return *device = 0; }
int _cudaDeviceGetAttribute(int *value) { return *value = 232448, 0; }
int _cudaFuncSetAttribute(void) { return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
int _cuKernelGetAttribute(int *value) { return *value = 0; }
void cuda_dialect_assert_success(int error) { (void)error; }
