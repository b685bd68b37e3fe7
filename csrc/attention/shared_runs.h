// Runs of partitions that several sequences of a step read from the same blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "attention.h"

namespace looseleaf {

// These sequences' tables agree over partitions [first_partition, last_partition), and all their queries see all of
// each. A run that fewer sequences carry on comes after it, with some of its members.
struct SharedRun {
  int64_t first_partition, last_partition;
  int64_t first_member, num_members;  // in `members`
};

struct SharedRuns {
  std::vector<SharedRun> runs;
  std::vector<int32_t> members;  // sequences
};

// How many partitions, from the first on, all queries of a sequence see to the end.
int64_t whole_partitions(const BatchView& batch, int64_t seq);

// `whole[i]`: how many partitions of sequence i may be shared; 0 leaves it out.
SharedRuns find_shared_runs(int64_t block_size, const BatchView& batch, const std::vector<int64_t>& whole);

}  // namespace looseleaf
