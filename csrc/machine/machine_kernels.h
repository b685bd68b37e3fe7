// Entry points of one instruction set's measuring kernels.
#pragma once
#include <cstdint>

namespace looseleaf {

struct MachineKernels {
  // The sum, modulo 2^32, of `chunks` · 64 bytes from `data` taken as 32-bit words: reads them, and does nothing else.
  uint32_t (*sum_words)(const char* data, int64_t chunks);
};

}  // namespace looseleaf
