#include "step_checks.h"

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <limits>

#include "../attention/attention_checks.h"

namespace looseleaf {
namespace {

using torch::headeronly::ScalarType;

// The Python side makes an IndexError of it; the stable ABI knows one kind of error only.
#define CHECK_INDEX(condition, ...) STD_TORCH_CHECK(condition, "IndexError: ", __VA_ARGS__)

void check_plain(const Tensor& tensor, ScalarType type, int64_t dims, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), name, " must be contiguous and on the CPU");
  STD_TORCH_CHECK(tensor.scalar_type() == type, name, " has the wrong dtype");
  STD_TORCH_CHECK(tensor.dim() == dims, name, " has ", tensor.dim(), " dimensions instead of ", dims);
}

const int64_t* indices(const Tensor& tensor, int64_t limit, const char* name, const char* of, int64_t least = 0) {
  check_plain(tensor, ScalarType::Long, 1, name);
  const auto* values = static_cast<const int64_t*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    CHECK_INDEX(values[i] >= least && values[i] < limit, name, "[", i, "] is ", values[i], ", outside the ", of,
                          " of ", limit);
  }
  return values;
}

PagedKV check_cache(const StepTensors& step, const DecoderShape& shape, int64_t num_layers) {
  KVLayout layout{};
  if (step.kv_type == "float32") {
    layout.type = KVType::float32;
  } else if (step.kv_type == "bfloat16") {
    layout.type = KVType::bfloat16;
  } else {
    STD_TORCH_CHECK(step.kv_type == "int8", "there is no KV type '", step.kv_type, "'");
    layout.type = KVType::int8;
  }
  layout.num_layers = num_layers;
  layout.num_blocks = step.num_blocks;
  layout.block_size = step.block_size;
  layout.num_kv_heads = shape.num_kv_heads;
  layout.head_dim = shape.head_dim;
  const Tensor& storage = step.kv_storage;
  STD_TORCH_CHECK(layout.num_blocks >= 1, "the cache has no blocks");
  check_block_size(layout.block_size);
  STD_TORCH_CHECK(storage.is_cpu() && storage.is_contiguous() && storage.scalar_type() == ScalarType::Byte,
                  "the cache must be contiguous bytes on the CPU");
  STD_TORCH_CHECK(storage.dim() == 3 && storage.size(0) == num_layers && storage.size(1) == layout.num_blocks &&
                      storage.size(2) == layout.block_bytes(),
                  "the cache is not of this model: [", num_layers, ", ", layout.num_blocks, ", ", layout.block_bytes(),
                  "] bytes are needed");
  auto* base = static_cast<char*>(storage.data_ptr());
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(base) % 64 == 0, "the cache is not aligned to 64 bytes");
  return {layout, base};
}

BatchView check_batch(const StepTensors& step, int64_t num_tokens) {
  check_plain(step.block_tables, ScalarType::Int, 2, "block_tables");
  check_plain(step.context_lens, ScalarType::Int, 1, "context_lens");
  check_plain(step.query_starts, ScalarType::Int, 1, "query_starts");
  const int64_t num_seqs = step.context_lens.numel(), width = step.block_tables.size(1);
  STD_TORCH_CHECK(step.block_tables.size(0) == num_seqs && step.query_starts.numel() == num_seqs + 1,
                  "block_tables, context_lens and query_starts are of different numbers of sequences");
  const auto* tables = static_cast<const int32_t*>(step.block_tables.data_ptr());
  const auto* lens = static_cast<const int32_t*>(step.context_lens.data_ptr());
  const auto* starts = static_cast<const int32_t*>(step.query_starts.data_ptr());
  STD_TORCH_CHECK(starts[0] == 0 && starts[num_seqs] == num_tokens, "query_starts must run from 0 to ", num_tokens);
  for (int64_t i = 0; i < num_seqs; ++i) {
    STD_TORCH_CHECK(starts[i] < starts[i + 1] && starts[i + 1] <= num_tokens, "query_starts must ascend");
    STD_TORCH_CHECK(lens[i] >= starts[i + 1] - starts[i], "context_lens[", i, "] is ", lens[i],
                    ", less than the sequence's query rows");
    const int64_t blocks = (lens[i] + step.block_size - 1) / step.block_size;
    CHECK_INDEX(blocks <= width, "sequence ", i, " needs ", blocks, " blocks but its table holds ", width);
    for (int64_t j = 0; j < blocks; ++j) {
      const int32_t block = tables[i * width + j];
      CHECK_INDEX(block >= 0 && block < step.num_blocks, "block_tables[", i, "][", j, "] is ", block,
                            ", outside the pool of ", step.num_blocks);
    }
  }
  return {num_seqs, tables, width, lens, starts, checked_cascade(step.cascade)};
}

}  // namespace

const float* float_data(const Tensor& tensor, int64_t dims, const char* name) {
  check_plain(tensor, ScalarType::Float, dims, name);
  return static_cast<const float*>(tensor.data_ptr());
}

StepView check_step(const StepTensors& step, const DecoderShape& shape, int64_t num_layers, int64_t num_adapters) {
  StepView view{};
  view.num_tokens = step.token_ids.numel();
  STD_TORCH_CHECK(view.num_tokens >= 1 && view.num_tokens < std::numeric_limits<int32_t>::max(), "a step of ",
                  view.num_tokens, " tokens");
  view.cache = check_cache(step, shape, num_layers);
  view.angles = float_data(step.angles, 2, "angles");
  STD_TORCH_CHECK(step.angles.size(1) == shape.head_dim, "angles must have ", shape.head_dim, " columns");
  view.token_ids = indices(step.token_ids, shape.vocab_size, "token_ids", "vocabulary");
  view.positions = indices(step.positions, step.angles.size(0), "positions", "table of angles");
  view.slots = indices(step.slots, step.num_blocks * step.block_size, "slots", "pool");
  STD_TORCH_CHECK(step.positions.numel() == view.num_tokens && step.slots.numel() == view.num_tokens,
                  "token_ids, positions and slots are of different lengths");
  view.batch = check_batch(step, view.num_tokens);
  view.all_wanted = !step.wanted;
  view.num_wanted = view.num_tokens;
  if (step.wanted) {
    view.wanted = indices(*step.wanted, view.num_tokens, "wanted", "rows");
    view.num_wanted = step.wanted->numel();
    for (int64_t i = 1; i < view.num_wanted; ++i)
      STD_TORCH_CHECK(view.wanted[i - 1] < view.wanted[i], "wanted rows must ascend");
  }
  if (step.adapters) {
    view.adapters = indices(*step.adapters, num_adapters, "adapters", "adapters", -1);
    STD_TORCH_CHECK(step.adapters->numel() == view.num_tokens, "token_ids and adapters are of different lengths");
  }
  float_data(step.out, 2, "out");
  STD_TORCH_CHECK(step.out.size(0) == view.num_wanted && step.out.size(1) == shape.hidden_size, "out must be [",
                  view.num_wanted, ", ", shape.hidden_size, "]");
  return view;
}

}  // namespace looseleaf
