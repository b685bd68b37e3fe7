// A weight matrix repacked for streaming, and y = x · Wᵀ (+ bias) with it, on torch's threads.
#pragma once
#include <cstdint>

namespace looseleaf {

enum class WeightType { float32, bfloat16, int8, int4 };

// Rows of W (outputs) in panels of 16; within a panel K runs outermost, so that a panel is read once, in order.
struct PackedLinear {
  WeightType type;
  int64_t out_features, in_features;
  const void* weight;   // the packed panels, 64-byte aligned
  const void* scales;   // int8, int4: per group of 32 inputs and output
  const void* minima;   // int4 with offsets, else null
  const float* bias;    // [out_features] or null
};

enum class Epilogue {
  store,     // y = x·Wᵀ + bias
  add,       // y += x·Wᵀ + bias: the residual
  silu_mul,  // W is [gate; up] packed in pairs by pack_gate_up: y[j] = silu(gate[j]) · up[j], out_features / 2 columns
};

// x: row r at x + r · x_stride, float32. y likewise. A row's result is bitwise the same for any `rows` and threads.
void linear(const PackedLinear& weight, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
            Epilogue epilogue);

// Row `index` of W as float32 [in_features]: the embedding lookup of a tied matrix. On the calling thread.
void unpack_row(const PackedLinear& weight, int64_t index, float* out);

}  // namespace looseleaf
