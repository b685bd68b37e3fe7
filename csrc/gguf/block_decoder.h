// Values of the quantised blocks of GGUF files. The arithmetic is that of the gguf package, float32 step by step, so
// that the values are the same to the bit.
#pragma once
#include <cstdint>
#include <string_view>

namespace looseleaf {

struct BlockFormat {
  std::string_view name;  // as the gguf package calls it
  int64_t values;         // of one block
  int64_t bytes;
  void (*decode)(const uint8_t* block, float* values);
};

// The format of that name, or null.
const BlockFormat* block_format(std::string_view name);

}  // namespace looseleaf
