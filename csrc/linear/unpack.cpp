#include <torch/headeronly/util/Half.h>

#include <cstring>

#include "packed_linear.h"

namespace looseleaf {
namespace {

float scale_at(const void* scales, bool wide, int64_t i) {
  if (wide) return static_cast<const float*>(scales)[i];
  return float(c10::Half(static_cast<const uint16_t*>(scales)[i], c10::Half::from_bits()));
}

}  // namespace

void unpack_row(const PackedLinear& weight, int64_t index, float* out) {
  const int64_t half = weight.out_features / 2, padded = weight.padded_in();
  const int64_t output = weight.paired && index >= half ? index - half : index;
  const int64_t panel = weight.paired ? output / 16 * 2 + (index >= half) : output / 16;
  const int64_t lane = output % 16;
  const char* base = static_cast<const char*>(weight.weight) + panel * weight.panel_bytes();
  const auto group = [&](int64_t k) { return (panel * (padded / 32) + k / 32) * 16 + lane; };
  for (int64_t k = 0; k < weight.in_features; ++k) {
    const int64_t pair = (k / 2 * 16 + lane) * 2 + k % 2;
    switch (weight.type) {
      case WeightType::float32:
        out[k] = reinterpret_cast<const float*>(base)[16 * k + lane];
        break;
      case WeightType::bfloat16: {
        const uint32_t bits = uint32_t(reinterpret_cast<const uint16_t*>(base)[pair]) << 16;
        std::memcpy(out + k, &bits, 4);
        break;
      }
      case WeightType::int8:
        out[k] = scale_at(weight.scales, weight.wide_scales, group(k)) * float(reinterpret_cast<const int8_t*>(base)[pair]);
        break;
      case WeightType::int4: {
        const uint16_t word = reinterpret_cast<const uint16_t*>(base)[(k / 8 * 16 + lane) * 2 + k % 2];
        const int code = (word >> (k % 8 / 2 * 4)) & 15;
        const float scale = scale_at(weight.scales, weight.wide_scales, group(k));
        out[k] = weight.minima ? scale * float(code) + scale_at(weight.minima, weight.wide_scales, group(k))
                               : scale * float(code - 8);
        break;
      }
    }
  }
}

}  // namespace looseleaf
