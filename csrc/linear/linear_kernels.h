// Entry points of one instruction set's linear kernels.
#pragma once

namespace looseleaf {

struct LinearKernels {};

}  // namespace looseleaf
