#pragma once
#include <torch/csrc/stable/tensor.h>

namespace looseleaf {

// cache: contiguous, [outer, num_blocks, …]; every block source[i] is copied onto destination[i] for each outer
// index, pair after pair. source, destination: int32 [n]. Block ids are checked against num_blocks first.
void copy_blocks(torch::stable::Tensor cache, torch::stable::Tensor source, torch::stable::Tensor destination);

}  // namespace looseleaf
