// The physical layout of the paged KV cache. Nobody outside `attention` and `memory` indexes it.
#pragma once
#include <cstdint>

namespace looseleaf {

enum class KVType { float32, bfloat16, int8 };

struct KVLayout {
  KVType type;
  int64_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;

  // Bytes of one block of one layer, all heads, keys and values and (int8) their scales. [num_layers][num_blocks] of
  // these follow one another.
  int64_t block_bytes() const;
};

// A cache in memory: `base` is aligned to 64 bytes and holds num_layers · num_blocks · block_bytes() bytes.
struct PagedKV {
  KVLayout layout;
  char* base;
};

}  // namespace looseleaf
