#include "attention_kernels.h"

namespace looseleaf {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int64_t partial_floats(int64_t row_stride, int64_t rows) { return 2 * ((rows + 15) / 16 * 16) + rows * row_stride; }

PartialSums partial_sums(float* base, int64_t rows) {
  const int64_t padded = (rows + 15) / 16 * 16;
  return {base, base + padded, base + 2 * padded};
}

ScratchPlan plan_scratch(const KVLayout& layout, int64_t rows) {
  const int64_t dim = layout.dim();
  ScratchPlan plan{};
  plan.row_stride = (dim + 15) / 16 * 16;
  const auto take = [&](int64_t& begin, int64_t bytes) {
    begin = plan.bytes;
    plan.bytes += aligned(bytes);
  };
  take(plan.query, rows * plan.row_stride * 4);
  take(plan.query_scale, rows * 4);
  take(plan.scores, rows * partition_tokens * 4);
  take(plan.weights, layout.type == KVType::float32 ? 0 : rows * partition_tokens * 2);
  take(plan.weight_scale, rows * 4);
  take(plan.partial, partial_floats(plan.row_stride, rows) * 4);
  take(plan.running, partial_floats(plan.row_stride, rows) * 4);
  take(plan.wide, layout.type == KVType::bfloat16 ? 4 * tile_tokens * dim * 4 : 0);
  take(plan.tiles, layout.tiled() ? 0 : partition_tokens / tile_tokens * aligned(layout.tile_bytes()));
  take(plan.bounds, 2 * rows * 4);
  return plan;
}

}  // namespace looseleaf
