#include "block_copy.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cstring>

namespace looseleaf {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void copy_blocks(Tensor cache, Tensor source, Tensor destination) {
  STD_TORCH_CHECK(cache.is_cpu() && source.is_cpu() && destination.is_cpu(), "copy_blocks: tensors must be on the CPU");
  STD_TORCH_CHECK(cache.is_contiguous() && cache.dim() >= 2, "copy_blocks: cache must be contiguous, [outer, num_blocks, ...]");
  for (const Tensor* ids : {&source, &destination}) {
    STD_TORCH_CHECK(ids->scalar_type() == ScalarType::Int && ids->dim() == 1 && ids->is_contiguous(),
                    "copy_blocks: block ids must be contiguous int32 vectors");
  }
  STD_TORCH_CHECK(source.numel() == destination.numel(), "copy_blocks: ", source.numel(), " sources but ",
                  destination.numel(), " destinations");

  const int64_t outer = cache.size(0);
  const int64_t num_blocks = cache.size(1);
  const int64_t pairs = source.numel();
  const auto* from = static_cast<const int32_t*>(source.data_ptr());
  const auto* to = static_cast<const int32_t*>(destination.data_ptr());
  for (int64_t i = 0; i < pairs; ++i) {
    STD_TORCH_CHECK(from[i] >= 0 && from[i] < num_blocks && to[i] >= 0 && to[i] < num_blocks, "copy_blocks: pair ", i,
                    " (", from[i], " -> ", to[i], ") is outside the pool of ", num_blocks, " blocks");
  }
  if (cache.numel() == 0) return;

  const int64_t block_bytes = cache.numel() / (outer * num_blocks) * cache.element_size();
  auto* base = static_cast<char*>(cache.data_ptr());
  // Parallel over the outer index: the pairs of one slice must run in order, slices are independent.
  torch::stable::parallel_for(0, outer, 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      char* slice = base + o * num_blocks * block_bytes;
      for (int64_t i = 0; i < pairs; ++i) {
        if (from[i] != to[i]) std::memcpy(slice + to[i] * block_bytes, slice + from[i] * block_bytes, block_bytes);
      }
    }
  });
}

}  // namespace looseleaf
