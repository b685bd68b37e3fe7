// Entry points of one instruction set's linear kernels: they run on the calling thread and check nothing.
#pragma once
#include <cstdint>

#include "packed_linear.h"

namespace looseleaf {

// What the kernels read activations as. Rows of int16 have a scale and a sum for each group of 32.
enum class RowType { float32, bfloat16, int16 };

struct Rows {
  const void* x;  // row r at x + r · stride numbers; padded to 32 with zeros
  int64_t stride;
  const float* scales;  // int16: [rows][groups]: x ≈ scale · q
  const int32_t* sums;  // int16: [rows][groups]: the sum of the q
};

// One work item: rows [first_row, last_row) times panels [first_panel, last_panel).
struct LinearItem {
  const PackedLinear* weight;
  Rows rows;
  int64_t first_row, last_row, first_panel, last_panel;
  float* y;
  int64_t y_stride;
  Epilogue epilogue;
};

struct LinearKernels {
  int row_granule;  // blocks of rows are best multiples of it
  RowType (*row_type)(WeightType type);
  void (*multiply)(const LinearItem& item);
  // A row of `count` numbers, padded to 32 with zeros.
  void (*round_row)(const float* x, int64_t count, uint16_t* out);
  void (*quantize_row)(const float* x, int64_t count, int16_t* out, float* scales, int32_t* sums);
  // int8 weights of one output, likewise; scales in half precision. False if a number is not finite or too large.
  bool (*quantize_weights)(const float* w, int64_t count, int8_t* out, uint16_t* scales);
};

}  // namespace looseleaf
