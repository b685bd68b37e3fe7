#include "work_items.h"

#include <algorithm>

#include "attention_kernels.h"

namespace looseleaf {
namespace {

// Rows of a block of queries: enough to use each tile of keys and values often, few enough for the cache.
constexpr int64_t block_rows = 48;
// Items per thread, so that the last to finish is not long alone.
constexpr int64_t items_per_thread = 4;
constexpr int64_t least_rows = 12;

int64_t positions_per_block(int64_t group, int64_t positions, int64_t heads, int64_t threads) {
  int64_t rows = block_rows;
  while (rows > least_rows && positions * group / rows * heads < items_per_thread * threads) rows /= 2;
  return std::max<int64_t>(1, rows / group);
}

}  // namespace

WorkList cut_work(const KVLayout& layout, int64_t num_heads, const BatchView& batch, const AttentionOptions& options,
                  int64_t threads) {
  const int64_t heads = layout.num_kv_heads, group = num_heads / heads;
  const int64_t all_positions = batch.query_starts[batch.num_seqs] - batch.query_starts[0];
  const int64_t most_positions = positions_per_block(group, all_positions, heads, threads);
  WorkList list;
  int64_t total = 0;
  for (int64_t seq = 0; seq < batch.num_seqs; ++seq) {
    const int64_t begin = batch.query_starts[seq], count = batch.query_starts[seq + 1] - begin;
    const int64_t start = batch.context_lens[seq] - count;
    // The last positions see most, and go first.
    for (int64_t end = count; end > 0;) {
      const int64_t first = std::max<int64_t>(0, (end - 1) / most_positions * most_positions);
      const int64_t lowest = options.sliding_window > 0 ? std::max<int64_t>(0, start + first - options.sliding_window + 1) : 0;
      for (int64_t head = 0; head < heads; ++head)
        list.blocks.push_back({seq, head, begin + first, end - first, start + first, lowest / partition_tokens,
                               (start + end + partition_tokens - 1) / partition_tokens, -1, 1});
      const QueryBlock& block = list.blocks.back();
      total += heads * (block.last_partition - block.first_partition) * block.num_positions;
      list.most_rows = std::max(list.most_rows, block.num_positions * group);
      end = first;
    }
  }
  const int64_t row_stride = plan_scratch(layout, 1).row_stride;
  const int64_t share = threads > 1 ? std::max<int64_t>(1, total / (threads * items_per_thread)) : total;
  for (size_t i = 0; i < list.blocks.size(); ++i) {
    QueryBlock& block = list.blocks[i];
    const int64_t partitions = block.last_partition - block.first_partition;
    const int64_t pieces = std::min(partitions, (partitions * block.num_positions + share - 1) / share);
    block.items = std::max<int64_t>(1, pieces);
    for (int64_t piece = 0; piece < block.items; ++piece)
      list.items.push_back({int64_t(i), block.first_partition + partitions * piece / block.items,
                            block.first_partition + partitions * (piece + 1) / block.items});
    if (block.items > 1) {
      block.partial = list.partial_floats;
      list.partial_floats += partitions * partial_floats(row_stride, block.num_positions * group);
    }
  }
  return list;
}

}  // namespace looseleaf
