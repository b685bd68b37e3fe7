#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>

namespace looseleaf {

// Reads a contiguous tensor once on torch's threads, each its own part: the speed that reading alone can reach.
// Returns the sum of its bytes as 32-bit words (the last one filled up with zeros), modulo 2^32.
int64_t read_memory(torch::stable::Tensor data);

// The compiler that built this library, and how.
std::string build_info();

}  // namespace looseleaf
