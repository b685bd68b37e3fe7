// Filling a PackedLinear's panels. Arguments are trusted: the operators check them.
#pragma once
#include <cstdint>

#include "packed_linear.h"

namespace looseleaf {

// Where [out_features, in_features] numbers go: panel i of them becomes panel first_panel + i · panel_step.
struct PackTarget {
  WeightType type;
  int64_t out_features, in_features;
  char* weight;
  void* scales;
  void* minima;
  int64_t first_panel, panel_step;
  bool wide_scales;

  int64_t padded_in() const { return (in_features + 31) / 32 * 32; }
  int64_t panels() const { return (out_features + 15) / 16; }
};

// Row r at source + r · stride numbers. bfloat16 rounds float32 to nearest even. False: a number that int8 cannot hold
// (not finite, or beyond 127 · 65504).
bool pack_float32(const PackTarget& target, const float* source, int64_t stride);
bool pack_bfloat16(const PackTarget& target, const uint16_t* source, int64_t stride);

enum class GgufType { q8_0, q4_0, q4_1, q4_k };
struct GgufBlock {
  int64_t numbers, bytes;
};
GgufBlock gguf_block(GgufType type);
void pack_gguf(const PackTarget& target, GgufType type, const uint8_t* source);

// One output's codes [padded_in] (int4: 0 … 15) into its place in its panel.
void place_int8(const PackTarget& target, int64_t output, const int8_t* codes);
void place_int4(const PackTarget& target, int64_t output, const uint8_t* codes);

}  // namespace looseleaf
