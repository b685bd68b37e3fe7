// Entry points of one instruction set's step kernels.
#pragma once
#include <cstdint>

namespace looseleaf {

struct StepKernels {
  // out = x / sqrt(mean(x²) + eps) · weight, over `size` numbers; out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
  // Rotate one head in place, pair (i, i + half) by angle i. angles: cosines [half], then sines [half].
  void (*rotate)(float* head, const float* angles, int64_t half);
  // out[i] = silu(gate[i]) · up[i] for `count` numbers. pairs: 16 of gate, then 16 of up, and so on, whole panels.
  void (*silu_mul)(const float* pairs, int64_t count, float* out);
  // The index of the largest number, the first of equals; that of the first NaN if there is any. size ≥ 1.
  int64_t (*argmax)(const float* x, int64_t size);
};

}  // namespace looseleaf
