// Prints the configuration that DeepGEMM's own heuristic chooses for bf16 products on Hopper.
//
// Usage: deepgemm_heuristic NUM_SMS, with lines "M N K" on the standard input; a line "M N K GemmConfig(...)" for each.
// benchmarks/deepgemm_build.py compiles it against a checkout of DeepGEMM, without torch and without cuBLASLt: their
// headers are empty files there, and what DeepGEMM's heuristic names of them stands below.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <cuda_runtime.h>

#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 2

namespace c10 {
enum class ScalarType { Byte, Char, Int, Float, BFloat16, Float8_e4m3fn };
constexpr auto kByte = ScalarType::Byte, kInt8 = ScalarType::Char, kInt = ScalarType::Int, kFloat = ScalarType::Float,
               kBFloat16 = ScalarType::BFloat16, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn;
inline int elementSize(ScalarType t) { return t == kBFloat16 ? 2 : t == kInt || t == kFloat ? 4 : 1; }
inline const char* toString(ScalarType) { return "?"; }

// Never made here: DeepGEMM's headers name them in functions that the heuristic does not call.
constexpr int kCUDA = 1;
struct TensorOptions {
    TensorOptions device(int) const { return {}; }
};
inline TensorOptions dtype(ScalarType) { return {}; }
struct Tensor {
    int dim() const { return 0; }
    long stride(int) const { return 0; }
    long size(int) const { return 0; }
    std::vector<long> sizes() const { return {}; }
    ScalarType scalar_type() const { return kByte; }
    int element_size() const { return 1; }
};
inline Tensor empty(std::initializer_list<long>, TensorOptions) { return {}; }
}  // namespace c10
namespace at {
using namespace c10;
}
namespace torch {
using namespace c10;
}

typedef void* cublasLtHandle_t;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t*) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline const char* cublasGetStatusString(cublasStatus_t) { return ""; }
inline const char* cublasLtGetStatusString(cublasStatus_t) { return ""; }

#include "utils/system.hpp"
#include "jit_kernels/heuristics/sm90.hpp"

int main(int, char** argv) {
    using namespace deep_gemm;
    GemmDesc desc{.gemm_type = GemmType::Normal,
                  .kernel_type = KernelType::KernelNoSF,
                  .m = 0,
                  .n = 0,
                  .k = 0,
                  .num_groups = 1,
                  .a_dtype = torch::kBFloat16,
                  .b_dtype = torch::kBFloat16,
                  .cd_dtype = torch::kBFloat16,
                  .major_a = cute::UMMA::Major::K,
                  .major_b = cute::UMMA::Major::K,
                  .with_accumulation = false,
                  .num_sms = std::atoi(argv[1]),
                  .tc_util = 100,
                  .compiled_dims = "nk"};
    while (std::cin >> desc.m >> desc.n >> desc.k)
        std::cout << desc.m << " " << desc.n << " " << desc.k << " " << get_best_config<SM90ArchSpec>(desc) << "\n";
}
