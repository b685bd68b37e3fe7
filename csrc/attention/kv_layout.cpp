#include "kv_layout.h"

#include <algorithm>

namespace looseleaf {

bool KVLayout::tiled() const { return block_size % tile_tokens == 0 && dim() == head_dim; }
int64_t KVLayout::dim() const { return std::max<int64_t>(16, (head_dim + 7) / 8 * 8); }
int64_t KVLayout::element_bytes() const { return type == KVType::float32 ? 4 : type == KVType::bfloat16 ? 2 : 1; }
int64_t KVLayout::half_tile_bytes() const { return tile_tokens * dim() * element_bytes(); }
int64_t KVLayout::tile_bytes() const { return 2 * half_tile_bytes() + (type == KVType::int8 ? 4 * tile_tokens : 0); }
int64_t KVLayout::head_bytes() const {
  return 2 * block_size * (head_dim * element_bytes() + (type == KVType::int8 ? 2 : 0));
}
int64_t KVLayout::block_bytes() const { return (num_kv_heads * head_bytes() + 63) / 64 * 64; }

}  // namespace looseleaf
