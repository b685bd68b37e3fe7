// Entry points of one instruction set's attention kernels.
#pragma once

namespace looseleaf {

struct AttentionKernels {};

}  // namespace looseleaf
