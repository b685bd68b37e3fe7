// GGUF's blocks of 32 (Q8_0, Q4_0, Q4_1) and of 8 × 32 numbers (Q4_K) map one to one onto groups.
// Formats: ggml's block_q8_0, block_q4_0, block_q4_1, block_q4_K.
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../parallel.h"
#include "pack.h"

namespace looseleaf {
namespace {

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}
float widened(uint16_t half) { return float(c10::Half(half, c10::Half::from_bits())); }

// 32 numbers in 16 bytes: the low nibbles, then the high ones.
void split_nibbles(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = p[i] & 15;
    codes[16 + i] = p[i] >> 4;
  }
}

// Q4_K's eight 6-bit scales and minima in 12 bytes.
void split_scales(const uint8_t* p, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = p[j] & 63;
    minimum = p[j + 4] & 63;
  } else {
    scale = (p[j + 4] & 15) | ((p[j - 4] >> 6) << 4);
    minimum = (p[j + 4] >> 4) | ((p[j] >> 6) << 4);
  }
}

}  // namespace

GgufBlock gguf_block(GgufType type) {
  switch (type) {
    case GgufType::q8_0: return {32, 34};
    case GgufType::q4_0: return {32, 18};
    case GgufType::q4_1: return {32, 20};
    default: return {256, 144};
  }
}

void pack_gguf(const PackTarget& target, GgufType type, const uint8_t* source) {
  const int64_t count = target.in_features, groups = count / 32;
  const GgufBlock block = gguf_block(type);
  const int64_t row_bytes = count / block.numbers * block.bytes;
  parallel_items(target.panels(), [&](int64_t i, int64_t) {
    const int64_t first = (target.first_panel + i * target.panel_step) * groups * 16;
    auto* scales = static_cast<uint16_t*>(target.scales) + first;
    auto* minima = static_cast<uint16_t*>(target.minima) + (target.minima ? first : 0);
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    for (int64_t n = 0; n < 16; ++n) {
      const bool there = 16 * i + n < target.out_features;
      if (!there) std::fill(codes.begin(), codes.end(), uint8_t(0));
      const uint8_t* row = source + (16 * i + n) * row_bytes;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = 16 * g + n;
        if (type == GgufType::q4_k) {
          float scale = 0, minimum = 0;
          if (there) {
            const uint8_t* p = row + g / 8 * block.bytes;
            const int j = int(g % 8);
            int s, m;
            split_scales(p + 4, j, s, m);
            scale = widened(half_at(p)) * float(s);
            minimum = -(widened(half_at(p + 2)) * float(m));
            const uint8_t* q = p + 16 + j / 2 * 32;  // 64 numbers in 32 bytes: 32 low nibbles, 32 high ones
            for (int k = 0; k < 32; ++k) codes[size_t(32 * g + k)] = (q[k] >> (j % 2 * 4)) & 15;
          }
          static_cast<float*>(target.scales)[first + at] = scale;
          static_cast<float*>(target.minima)[first + at] = minimum;
          continue;
        }
        scales[at] = 0;
        if (minima) minima[at] = 0;
        if (!there) continue;
        const uint8_t* p = row + g * block.bytes;
        scales[at] = half_at(p);
        if (minima) minima[at] = half_at(p + 2);
        if (type == GgufType::q8_0) {
          std::memcpy(&codes[size_t(32 * g)], p + 2, 32);
        } else {
          split_nibbles(p + block.bytes - 16, &codes[size_t(32 * g)]);
        }
      }
      if (type == GgufType::q8_0) {
        place_int8(target, 16 * i + n, reinterpret_cast<const int8_t*>(codes.data()));
      } else {
        place_int4(target, 16 * i + n, codes.data());
      }
    }
  });
}

}  // namespace looseleaf
