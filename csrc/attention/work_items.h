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
  int64_t items;        // that attend for it
  int64_t first_place;  // of what they found, if it is put together in the end; else -1
  int64_t last_place;
};

// Partitions for some blocks of the same KV head and the same table: what one thread does at a time.
struct WorkItem {
  int64_t first_partition, last_partition;
  int64_t first_block, num_blocks;  // in `members`
  int64_t positions;                // of all its blocks together
  int64_t first_query;              // in `query_rows`, one per position; -1: those of its one block
  int64_t partial;                  // where its sums are kept, in floats; -1: the block has no other item
  bool joined;                      // one sum of all its partitions; else one for each
};

// Where the sums of some of a block's partitions are: one item's.
struct PartialPlace {
  int64_t item, first_position;  // of the item's positions
  int64_t next;                  // the place of the partitions that follow; -1: these are the last
};

struct WorkList {
  std::vector<QueryBlock> blocks;
  std::vector<WorkItem> items;
  std::vector<int32_t> members, query_rows;
  std::vector<PartialPlace> places;
  int64_t most_rows = 0;
  int64_t partial_floats = 0;
};

}  // namespace looseleaf
