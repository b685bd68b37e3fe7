#include "shared_runs.h"

#include <algorithm>
#include <cstring>

#include "attention_kernels.h"

namespace looseleaf {
namespace {

struct Tables {
  int64_t block_size;
  const BatchView& batch;
  const std::vector<int64_t>& whole;

  const int32_t* of(int32_t seq) const { return batch.block_tables + seq * batch.table_stride; }
  int64_t first_block(int64_t partition) const { return partition * partition_tokens / block_size; }
  int64_t last_block(int64_t partition) const {
    return ((partition + 1) * partition_tokens + block_size - 1) / block_size;
  }
  // The order of the blocks of one partition.
  int compare(int64_t partition, int32_t a, int32_t b) const {
    const int64_t first = first_block(partition), count = last_block(partition) - first;
    return std::memcmp(of(a) + first, of(b) + first, size_t(count) * sizeof(int32_t));
  }
  // Up to which partition two sequences go on alike that do so up to `partition`.
  int64_t common(int64_t partition, int64_t limit, int32_t a, int32_t b) const {
    while (partition < limit && compare(partition, a, b) == 0) ++partition;
    return partition;
  }
};

}  // namespace

int64_t whole_partitions(const BatchView& batch, int64_t seq) {
  const int64_t count = batch.query_starts[seq + 1] - batch.query_starts[seq];
  return count == 0 ? 0 : (batch.context_lens[seq] - count + 1) / partition_tokens;
}

SharedRuns find_shared_runs(int64_t block_size, const BatchView& batch, const std::vector<int64_t>& whole) {
  const Tables tables = {block_size, batch, whole};
  SharedRuns found;
  for (int64_t seq = 0; seq < batch.num_seqs; ++seq)
    if (whole[size_t(seq)] > 0) found.members.push_back(int32_t(seq));
  struct Branch {
    int64_t first, last, partition;  // members that agree up to here
  };
  std::vector<Branch> open = {{0, int64_t(found.members.size()), 0}};
  while (!open.empty()) {
    const Branch branch = open.back();
    open.pop_back();
    if (branch.last - branch.first < 2) continue;
    int32_t* const begin = found.members.data() + branch.first;
    int32_t* end = found.members.data() + branch.last;
    const auto whole_of = [&](int32_t seq) { return whole[size_t(seq)]; };
    int64_t partition = whole_of(*begin);
    for (const int32_t* seq = begin; seq < end && partition > branch.partition; ++seq)
      partition = tables.common(branch.partition, std::min(partition, whole_of(*seq)), *begin, *seq);
    if (partition > branch.partition)
      found.runs.push_back({branch.partition, partition, branch.first, branch.last - branch.first});
    // Who goes on with whom.
    end = std::partition(begin, end, [&](int32_t seq) { return whole_of(seq) > partition; });
    std::sort(begin, end, [&](int32_t a, int32_t b) {
      const int order = tables.compare(partition, a, b);
      return order != 0 ? order < 0 : a < b;
    });
    for (int32_t* from = begin; from < end;) {
      int32_t* to = from + 1;
      while (to < end && tables.compare(partition, *from, *to) == 0) ++to;
      open.push_back({from - found.members.data(), to - found.members.data(), partition});
      from = to;
    }
  }
  return found;
}

}  // namespace looseleaf
