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

// A block's rows of what an item found.
PartialSums from_row(PartialSums sums, int64_t row, int64_t row_stride) {
  return {sums.highest + row, sums.total + row, sums.sums + row * row_stride};
}

void copy_sums(int64_t rows, int64_t row_stride, PartialSums to, PartialSums from) {
  std::copy_n(from.highest, rows, to.highest);
  std::copy_n(from.total, rows, to.total);
  std::copy_n(from.sums, rows * row_stride, to.sums);
}

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
                     int64_t out_stride, int64_t num_heads, const BatchView& batch, const WorkList& work,
                     const AttentionOptions& options, float* lse) {
  const KVLayout& layout = cache.layout;
  const AttentionKernels& run = kernels().attention;
  if (work.items.empty()) return;
  const int64_t group = num_heads / layout.num_kv_heads;
  const ScratchPlan plan = plan_scratch(layout, work.most_rows);
  const char* blocks = layer_base(cache, layer);
  float* partials = reinterpret_cast<float*>(partial_scratch.at_least(4 * work.partial_floats));
  const std::unique_ptr<std::atomic<int64_t>[]> missing(new std::atomic<int64_t>[work.blocks.size()]);
  for (size_t i = 0; i < work.blocks.size(); ++i) missing[i].store(work.blocks[i].items, std::memory_order_relaxed);

  const auto task_of = [&](const QueryBlock& block) {
    return AttentionTask{layout,
                         blocks + block.kv_head * layout.head_bytes(),
                         batch.block_tables + block.seq * batch.table_stride,
                         query + block.first_row * query_stride + block.kv_head * group * layout.head_dim,
                         query_stride,
                         nullptr,
                         group,
                         block.num_positions,
                         block.first_position,
                         block.first_position + block.num_positions,
                         options};
  };
  // Of all partitions that some blocks share, each of their queries sees everything.
  const auto shared_task_of = [&](const WorkItem& item, const QueryBlock& block) {
    AttentionTask task = task_of(block);
    task.query = query + block.kv_head * group * layout.head_dim;
    task.query_rows = work.query_rows.data() + item.first_query;
    task.num_positions = item.positions;
    task.end = item.last_partition * partition_tokens;
    task.first_position = task.end - 1;
    task.options.sliding_window = 0;
    return task;
  };
  const auto join = [&](const QueryBlock& block, float* running) {
    const int64_t rows = group * block.num_positions;
    const PartialSums sums = partial_sums(running, rows);
    std::fill(running, running + partial_floats(plan.row_stride, rows), 0.0f);
    std::fill(sums.highest, sums.highest + rows, -std::numeric_limits<float>::infinity());
    for (int64_t i = block.first_place; i >= 0; i = work.places[size_t(i)].next) {
      const PartialPlace& place = work.places[size_t(i)];
      const WorkItem& item = work.items[size_t(place.item)];
      const int64_t floats = partial_floats(plan.row_stride, item.positions * group);
      for (int64_t j = 0; j < (item.joined ? 1 : item.last_partition - item.first_partition); ++j) {
        const PartialSums found = from_row(partial_sums(partials + item.partial + j * floats, item.positions * group),
                                           place.first_position * group, plan.row_stride);
        if (item.joined) copy_sums(rows, plan.row_stride, sums, found);
        else run.merge(rows, plan.row_stride, sums, found);
      }
    }
  };
  const auto finish = [&](const QueryBlock& block, float* running) {
    run.finish(task_of(block), plan.row_stride, running,
               out + block.first_row * out_stride + block.kv_head * group * layout.head_dim, out_stride,
               lse ? lse + block.first_row * num_heads + block.kv_head * group : nullptr, num_heads);
  };

  parallel_items(int64_t(work.items.size()), [&](int64_t index, int64_t) {
    const WorkItem& item = work.items[size_t(index)];
    const int32_t* members = work.members.data() + item.first_block;
    const QueryBlock& first = work.blocks[size_t(members[0])];
    const AttentionTask task = item.first_query < 0 ? task_of(first) : shared_task_of(item, first);
    char* scratch = thread_scratch.at_least(plan.bytes);
    float* running = reinterpret_cast<float*>(scratch + plan_scratch(layout, group * task.num_positions).running);
    if (item.partial < 0) {
      run.attend(task, item.first_partition, item.last_partition, running, false, scratch);
      finish(first, running);
      return;
    }
    run.attend(task, item.first_partition, item.last_partition, partials + item.partial, !item.joined, scratch);
    for (int64_t i = 0; i < item.num_blocks; ++i) {
      if (missing[size_t(members[i])].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
      join(work.blocks[size_t(members[i])], running);
      finish(work.blocks[size_t(members[i])], running);
    }
  });
}

}  // namespace looseleaf
