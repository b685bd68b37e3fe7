#include "isa.h"

#if defined(__AVX512BF16__)
#define LOOSELEAF_AVX512_BF16 1
#include "../simd/avx512.h"
#include "../simd/math.h"

#include "../attention/attention_kernels.inc"
#include "../linear/linear_kernels.inc"
#include "../machine/machine_kernels.inc"
#include "../step/step_kernels.inc"

namespace looseleaf {
namespace {
const KernelTable kernel_table = {attention_kernels, linear_kernels, machine_kernels, step_kernels};
}
extern const KernelTable* const avx512_bf16_kernels = &kernel_table;
}  // namespace looseleaf
#else
namespace looseleaf {
extern const KernelTable* const avx512_bf16_kernels = nullptr;
}
#endif
