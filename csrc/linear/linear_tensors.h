// A PackedLinear over tensors, with every shape checked.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "packed_linear.h"

namespace looseleaf {

// As `PackedLinear` in Python holds them. type: "float32", "bfloat16", "int8" or "int4". weight: uint8 [bytes], scales
// and minima: float16 or float32 [panels · K/32 · 16], bias: float32 [panels · 16]; contiguous, aligned to 64 bytes.
// Throws for what does not fit. The tensors must outlive the result.
PackedLinear packed_linear(const torch::stable::Tensor& weight, const std::optional<torch::stable::Tensor>& scales,
                           const std::optional<torch::stable::Tensor>& minima,
                           const std::optional<torch::stable::Tensor>& bias, const std::string& type,
                           int64_t out_features, int64_t in_features, bool paired);

}  // namespace looseleaf
