// How one step's attention is cut into pieces for the threads. No cut shows in the results.
#pragma once
#include <cstdint>
#include <vector>

#include "attention.h"

namespace looseleaf {

// Consecutive query rows of one sequence, of one KV head.
struct QueryBlock {
  int64_t seq, kv_head, first_row, num_positions, first_position;
  int64_t first_partition, last_partition;
  int64_t partial;  // where its partitions' sums are kept, in floats, if several items share it; else -1
  int64_t items;
};

// Some of a block's partitions: what one thread does at a time.
struct WorkItem {
  int64_t block, first_partition, last_partition;
};

struct WorkList {
  std::vector<QueryBlock> blocks;
  std::vector<WorkItem> items;
  int64_t most_rows = 0;
  int64_t partial_floats = 0;
};

WorkList cut_work(const KVLayout& layout, int64_t num_heads, const BatchView& batch, const AttentionOptions& options,
                  int64_t threads);

}  // namespace looseleaf
