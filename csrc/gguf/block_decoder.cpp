#include "block_decoder.h"

#include <torch/headeronly/util/Half.h>

#include <cstring>

namespace looseleaf {
namespace {

constexpr int small = 32;   // values of a legacy block
constexpr int super = 256;  // of a K block

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}

// [scale] then 16 bytes: value i in the low half of byte i, value i + 16 in the high half.
void q4_0(const uint8_t* block, float* values) {
  const float scale = half_at(block);
  const uint8_t* nibbles = block + 2;
  for (int i = 0; i < small / 2; ++i) {
    values[i] = scale * float((nibbles[i] & 15) - 8);
    values[i + small / 2] = scale * float((nibbles[i] >> 4) - 8);
  }
}

void q4_1(const uint8_t* block, float* values) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  const uint8_t* nibbles = block + 4;
  for (int i = 0; i < small / 2; ++i) {
    values[i] = scale * float(nibbles[i] & 15) + minimum;
    values[i + small / 2] = scale * float(nibbles[i] >> 4) + minimum;
  }
}

void q8_0(const uint8_t* block, float* values) {
  const float scale = half_at(block);
  const auto* numbers = reinterpret_cast<const int8_t*>(block + 2);
  for (int i = 0; i < small; ++i) values[i] = float(numbers[i]) * scale;
}

// Eight 6-bit scales and eight 6-bit minima in twelve bytes: the first four of each whole, with the upper bits of the
// other four above them.
void scales_and_minima(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
  const uint8_t *a = packed, *b = packed + 4, *c = packed + 8;
  for (int i = 0; i < 4; ++i) {
    scales[i] = a[i] & 63;
    minima[i] = b[i] & 63;
    scales[i + 4] = uint8_t((c[i] & 15) | ((a[i] >> 2) & 48));
    minima[i + 4] = uint8_t((c[i] >> 4) | ((b[i] >> 2) & 48));
  }
}

// [scale, scale of the minima, 12 bytes] then 32 bytes for each two groups of 32 values: low halves, high halves.
void q4_k(const uint8_t* block, float* values) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  uint8_t scales[8], minima[8];
  scales_and_minima(block + 4, scales, minima);
  for (int group = 0; group < 8; ++group) {
    const float d = scale * float(scales[group]), m = minimum * float(minima[group]);
    const uint8_t* nibbles = block + 16 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) values[group * 32 + i] = d * float((nibbles[i] >> shift) & 15) - m;
  }
}

// Low 4 bits of all values, high 2 bits, sixteen int8 scales, [scale]. Each 128 values are four groups of 32.
void q6_k(const uint8_t* block, float* values) {
  const uint8_t *low = block, *high = block + 128;
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float scale = half_at(block + 208);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* nibbles = low + group / 4 * 64 + group % 2 * 32;
    const uint8_t* pairs = high + group / 4 * 32;
    const int low_shift = group / 2 % 2 * 4, high_shift = group % 4 * 2;
    for (int i = 0; i < 32; ++i) {
      const int number = (((nibbles[i] >> low_shift) & 15) | (((pairs[i] >> high_shift) & 3) << 4)) - 32;
      values[group * 32 + i] = scale * float(scales[group * 2 + i / 16]) * float(number);
    }
  }
}

constexpr BlockFormat formats[] = {
    {"Q4_0", small, 18, q4_0}, {"Q4_1", small, 20, q4_1},  {"Q8_0", small, 34, q8_0},
    {"Q4_K", super, 144, q4_k}, {"Q6_K", super, 210, q6_k},
};

}  // namespace

const BlockFormat* block_format(std::string_view name) {
  for (const BlockFormat& format : formats)
    if (format.name == name) return &format;
  return nullptr;
}

}  // namespace looseleaf
