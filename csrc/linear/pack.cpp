#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "../isa/isa.h"
#include "../parallel.h"

namespace looseleaf {
namespace {

float widened(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
uint16_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : nearest);
}

// `count` of 32 numbers, then zeros.
void copy(const float* from, int64_t count, float* to) { std::memcpy(to, from, size_t(count) * 4); }
void copy(const uint16_t* from, int64_t count, uint16_t* to) { std::memcpy(to, from, size_t(count) * 2); }
void copy(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = rounded(from[i]);
}
void copy(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
}

// 16 outputs × 32 of K, from rows to columns.
void transpose(const float (&rows)[16][32], float* panel) {
  for (int k = 0; k < 32; ++k)
    for (int n = 0; n < 16; ++n) panel[16 * k + n] = rows[n][k];
}
void transpose(const uint16_t (&rows)[16][32], uint16_t* panel) {
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < 16; ++n) std::memcpy(panel + 32 * k + 2 * n, &rows[n][2 * k], 4);
}

template <class From, class To>
void pack_floats(const PackTarget& target, const From* source, int64_t stride) {
  const int64_t count = target.in_features, padded = target.padded_in();
  parallel_items(target.panels(), [&](int64_t i, int64_t) {
    auto* panel = reinterpret_cast<To*>(target.weight) + (target.first_panel + i * target.panel_step) * 16 * padded;
    const int64_t outputs = std::min<int64_t>(16, target.out_features - 16 * i);
    alignas(64) To rows[16][32] = {};
    for (int64_t k = 0; k < padded; k += 32) {
      const int64_t there = std::min<int64_t>(32, count - k);
      if (there < 32) std::memset(rows, 0, sizeof rows);
      for (int64_t n = 0; n < outputs; ++n) copy(source + (16 * i + n) * stride + k, there, rows[n]);
      transpose(rows, panel + 16 * k);
    }
  });
}

template <class From>
bool pack_int8(const PackTarget& target, const From* source, int64_t stride) {
  const int64_t count = target.in_features, padded = target.padded_in(), groups = padded / 32;
  const auto quantize = kernels().linear.quantize_weights;
  std::atomic<bool> fits{true};
  parallel_items(target.panels(), [&](int64_t i, int64_t) {
    const int64_t panel = target.first_panel + i * target.panel_step;
    auto* scales = static_cast<uint16_t*>(target.scales) + panel * groups * 16;
    std::vector<float> row(static_cast<size_t>(count));
    std::vector<int8_t> codes(static_cast<size_t>(padded));
    std::vector<uint16_t> row_scales(static_cast<size_t>(groups));
    for (int64_t n = 0; n < 16; ++n) {
      if (16 * i + n < target.out_features) {
        copy(source + (16 * i + n) * stride, count, row.data());
        if (!quantize(row.data(), count, codes.data(), row_scales.data())) fits = false;
      } else {
        std::fill(codes.begin(), codes.end(), int8_t(0));
        std::fill(row_scales.begin(), row_scales.end(), uint16_t(0));
      }
      place_int8(target, 16 * i + n, codes.data());
      for (int64_t g = 0; g < groups; ++g) scales[16 * g + n] = row_scales[size_t(g)];
    }
  });
  return fits;
}

template <class From>
bool pack(const PackTarget& target, const From* source, int64_t stride) {
  if (target.type == WeightType::int8) return pack_int8(target, source, stride);
  if (target.type == WeightType::bfloat16) {
    pack_floats<From, uint16_t>(target, source, stride);
  } else {
    pack_floats<From, float>(target, source, stride);
  }
  return true;
}

int64_t panel_index(const PackTarget& target, int64_t output) {
  return target.first_panel + output / 16 * target.panel_step;
}

}  // namespace

bool pack_float32(const PackTarget& target, const float* source, int64_t stride) {
  return pack(target, source, stride);
}
bool pack_bfloat16(const PackTarget& target, const uint16_t* source, int64_t stride) {
  return pack(target, source, stride);
}

void place_int8(const PackTarget& target, int64_t output, const int8_t* codes) {
  const int64_t padded = target.padded_in();
  char* panel = target.weight + panel_index(target, output) * 16 * padded + 2 * (output % 16);
  for (int64_t k = 0; k < padded; k += 2) std::memcpy(panel + 16 * k, codes + k, 2);
}

void place_int4(const PackTarget& target, int64_t output, const uint8_t* codes) {
  const int64_t padded = target.padded_in();
  auto* panel = reinterpret_cast<uint16_t*>(target.weight) + panel_index(target, output) * 4 * padded + 2 * (output % 16);
  for (int64_t k = 0; k < padded; k += 8, codes += 8) {
    for (int odd = 0; odd < 2; ++odd)
      panel[4 * k + odd] = uint16_t(codes[odd] | codes[2 + odd] << 4 | codes[4 + odd] << 8 | codes[6 + odd] << 12);
  }
}

}  // namespace looseleaf
