#include "isa.h"

#include "../simd/portable.h"
#include "../simd/math.h"

#include "../attention/attention_kernels.inc"
#include "../linear/linear_kernels.inc"
#include "../machine/machine_kernels.inc"
#include "../step/step_kernels.inc"

namespace looseleaf {
extern const KernelTable portable_kernels = {attention_kernels, linear_kernels, machine_kernels, step_kernels};
}
