// Checks that every operator on attention shares.
#pragma once
#include <cstdint>
#include <string>

#include "attention.h"

namespace looseleaf {

// Of these, the bytes of a block fit 64 bits many times.
constexpr int64_t most_block_size = int64_t(1) << 24, most_kv_heads = int64_t(1) << 20, most_head_dim = 256;

// auto, on or off; throws for another name.
Cascade checked_cascade(const std::string& name);

// Throws for sizes that the kernels have no room for, or whose product overflows.
void check_block_size(int64_t block_size);
void check_head_dim(int64_t head_dim);

}  // namespace looseleaf
