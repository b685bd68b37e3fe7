// Entry points of one instruction set's step kernels.
#pragma once
#include <cstdint>

namespace looseleaf {

// y[row] += t[row] · Bᵀ over rows `rows` of y, one after another in t.
struct LowRankItem {
  const void* b;  // float32 [outputs/16][rank][16] or bfloat16 [outputs/16][rank/2][16][2], rank and outputs filled up
  bool bfloat16;
  int64_t rank, outputs;
  const float* t;
  int64_t t_stride;
  const int64_t* rows;
  int64_t count, first_row;  // y begins at row first_row
  float* y;
  int64_t y_stride, y_panel_stride;  // 16 outputs after 16 others: 16 numbers on, or more
};

struct StepKernels {
  // out = x / sqrt(mean(x²) + eps) · weight, over `size` numbers; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
  // Rotate one head in place, pair (i, i + half) by angle i. angles: cosines [half], then sines [half].
  void (*rotate)(float* head, const float* angles, int64_t half);
  // out[i] = silu(gate[i]) · up[i] for `count` numbers. pairs: 16 of gate, then 16 of up, and so on, whole panels.
  void (*silu_mul)(const float* pairs, int64_t count, float* out);
  void (*low_rank)(const LowRankItem& item);
  // The index of the largest number, the first of equals; that of the first NaN if there is any. size ≥ 1.
  int64_t (*argmax)(const float* x, int64_t size);
};

}  // namespace looseleaf
