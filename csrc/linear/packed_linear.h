// A weight matrix repacked for streaming, and y = x · Wᵀ (+ bias) with it, on torch's threads.
//
// Rows of W (outputs) lie in panels of 16; within a panel K runs outermost, so that a panel is read once, in order.
// K is padded to 32 with zeros, the outputs to 16:
//   float32   [panels][K][16]
//   bfloat16  [panels][K/2][16][2]: 16 pairs of a K pair, so that 32 of K are one AMX tile
//   int8      [panels][K/2][16][2], and scales [panels][K/32][16]: w = scale · q
//   int4      [panels][K/8][16][2] words of 16 bits: nibble i of a word belongs to K pair i of the four, so that a mask
//             and a shift unpack it; scales as int8; w = scale · (q − 8), or with minima scale · q + minimum
#pragma once
#include <cstdint>

namespace looseleaf {

enum class WeightType { float32, bfloat16, int8, int4 };

struct PackedLinear {
  WeightType type;
  int64_t out_features, in_features;
  const void* weight;   // the packed panels
  const void* scales;   // int8, int4: IEEE half, or float if wide_scales
  const void* minima;   // int4 with offsets, typed as the scales; else null
  const float* bias;    // [panels][16], in the panels' order, or null
  bool wide_scales = false;
  bool paired = false;  // [gate; up] of out_features / 2 each: panel 2i holds outputs 16i … of gate, 2i + 1 those of up

  int64_t padded_in() const { return (in_features + 31) / 32 * 32; }
  int64_t panels() const { return paired ? (out_features / 2 + 15) / 16 * 2 : (out_features + 15) / 16; }
  int64_t panel_bytes() const {
    const int64_t numbers = 16 * padded_in();
    switch (type) {
      case WeightType::float32: return 4 * numbers;
      case WeightType::bfloat16: return 2 * numbers;
      case WeightType::int8: return numbers;
      default: return numbers / 2;
    }
  }
};

enum class Epilogue {
  store,     // y = x·Wᵀ + bias
  add,       // y += x·Wᵀ + bias: the residual
  silu_mul,  // W is paired: y[j] = silu(gate[j]) · up[j], out_features / 2 columns
};

// x: row r at x + r · x_stride, float32. y likewise. A row's result is bitwise the same for any `rows` and threads.
void linear(const PackedLinear& weight, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
            Epilogue epilogue);

// Row `index` of W as float32 [in_features]: the embedding lookup of a tied matrix. On the calling thread.
void unpack_row(const PackedLinear& weight, int64_t index, float* out);

}  // namespace looseleaf
