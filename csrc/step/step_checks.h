// Checks of one step's arguments at the operator boundary: nothing is read or written outside the tensors given.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "decoder.h"

namespace looseleaf {

using torch::stable::Tensor;

struct StepTensors {
  Tensor token_ids, positions, angles;
  Tensor kv_storage;
  std::string kv_type;
  int64_t num_blocks, block_size;
  Tensor block_tables, context_lens, query_starts, slots;
  std::string cascade;
  std::optional<Tensor> wanted, adapters;
  Tensor out;
};

// The same as plain pointers. Throws for whatever does not fit together or the model; token ids, positions, slots and
// the block table entries in use are looked at one by one.
StepView check_step(const StepTensors& step, const DecoderShape& shape, int64_t num_layers, int64_t num_adapters);

// A contiguous CPU tensor's numbers; throws, naming `name`, for another dtype or number of dimensions.
const float* float_data(const Tensor& tensor, int64_t dims, const char* name);

}  // namespace looseleaf
