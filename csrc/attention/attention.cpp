#include "attention.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>

#include "../isa/isa.h"
#include "../parallel.h"
#include "attention_kernels.h"
#include "scratch.h"
#include "work_items.h"

namespace looseleaf {
namespace {

thread_local Scratch thread_scratch;
thread_local Scratch partial_scratch;  // of the thread that calls

char* layer_base(const PagedKV& cache, int64_t layer) {
  return cache.base + layer * cache.layout.num_blocks * cache.layout.block_bytes();
}

}  // namespace

void write_kv(const PagedKV& cache, int64_t layer, const float* key, int64_t key_stride, const float* value,
              int64_t value_stride, const int64_t* slots, int64_t first, int64_t last) {
  kernels().attention.write(cache.layout, layer_base(cache, layer), key, key_stride, value, value_stride, slots, first,
                            last);
}

void paged_attention(const PagedKV& cache, int64_t layer, const float* query, int64_t query_stride, float* out,
                     int64_t out_stride, int64_t num_heads, const BatchView& batch, const AttentionOptions& options,
                     float* lse) {
  const KVLayout& layout = cache.layout;
  const AttentionKernels& run = kernels().attention;
  const WorkList work = cut_work(layout, num_heads, batch, options, num_threads());
  if (work.items.empty()) return;
  const int64_t group = num_heads / layout.num_kv_heads;
  const ScratchPlan plan = plan_scratch(layout, work.most_rows);
  const char* blocks = layer_base(cache, layer);
  float* partials = reinterpret_cast<float*>(partial_scratch.at_least(4 * work.partial_floats));
  const std::unique_ptr<std::atomic<int64_t>[]> missing(new std::atomic<int64_t>[work.blocks.size()]);
  for (size_t i = 0; i < work.blocks.size(); ++i) missing[i].store(work.blocks[i].items, std::memory_order_relaxed);

  parallel_items(int64_t(work.items.size()), [&](int64_t index, int64_t) {
    const WorkItem& item = work.items[size_t(index)];
    const QueryBlock& block = work.blocks[size_t(item.block)];
    const int64_t rows = group * block.num_positions;
    const AttentionTask task = {layout,
                                blocks + block.kv_head * layout.head_bytes(),
                                batch.block_tables + block.seq * batch.table_stride,
                                query + block.first_row * query_stride + block.kv_head * group * layout.head_dim,
                                query_stride,
                                group,
                                block.num_positions,
                                block.first_position,
                                options};
    char* scratch = thread_scratch.at_least(plan.bytes);
    float* running = reinterpret_cast<float*>(scratch + plan_scratch(layout, rows).running);
    if (block.partial < 0) {
      run.attend(task, item.first_partition, item.last_partition, running, false, scratch);
    } else {
      const int64_t floats = partial_floats(plan.row_stride, rows);
      float* first = partials + block.partial;
      run.attend(task, item.first_partition, item.last_partition,
                 first + (item.first_partition - block.first_partition) * floats, true, scratch);
      if (missing[size_t(item.block)].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      std::fill(running, running + floats, 0.0f);
      std::fill(running, running + rows, -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < block.last_partition - block.first_partition; ++i)
        run.merge(rows, plan.row_stride, running, first + i * floats);
    }
    run.finish(task, plan.row_stride, running,
               out + block.first_row * out_stride + block.kv_head * group * layout.head_dim, out_stride,
               lse ? lse + block.first_row * num_heads + block.kv_head * group : nullptr, num_heads);
  });
}

}  // namespace looseleaf
