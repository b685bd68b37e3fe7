// The physical layout of the paged KV cache. Nobody outside `attention` and `memory` indexes it.
//
// [num_layers][num_blocks] blocks of block_bytes(), each [num_kv_heads] of head_bytes(). With block sizes that are
// multiples of 16 and head_dim a multiple of 8, a head is a row of tiles, 16 tokens each, that the kernels read where
// they lie:
//
//   float32    keys [dim][16]        values [16][dim]
//   bfloat16   keys [dim/2][16][2]   values [16/2][dim][2]
//   int8       keys [dim/2][16][2]   values [16/2][dim][2]   key scales [16]   value scales [16]   (bfloat16)
//
// so that a key row is one dimension (or pair) of 16 tokens, and pairs are what 16-bit products and AMX tiles take.
// Otherwise a head is keys [block_size][head_dim], values likewise, then the scales, and the kernels put tiles together
// first, with dim = head_dim rounded up to a multiple of 8, at least 16, filled up with zeros.
#pragma once
#include <cstdint>

namespace looseleaf {

enum class KVType { float32, bfloat16, int8 };

constexpr int64_t tile_tokens = 16;

struct KVLayout {
  KVType type;
  int64_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;

  bool tiled() const;
  int64_t dim() const;  // of tiles
  int64_t element_bytes() const;
  // Keys of one tile; values take as much.
  int64_t half_tile_bytes() const;
  int64_t tile_bytes() const;
  int64_t head_bytes() const;
  // Bytes of one block of one layer, all heads, keys and values and (int8) their scales: a multiple of 64.
  int64_t block_bytes() const;
};

// A cache in memory: `base` is aligned to 64 bytes and holds num_layers · num_blocks · block_bytes() bytes.
struct PagedKV {
  KVLayout layout;
  char* base;
};

}  // namespace looseleaf
