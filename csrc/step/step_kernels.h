// Entry points of one instruction set's step kernels.
#pragma once

namespace looseleaf {

struct StepKernels {};

}  // namespace looseleaf
