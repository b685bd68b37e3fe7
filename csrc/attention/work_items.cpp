#include "work_items.h"

#include <algorithm>

#include "../parallel.h"
#include "attention_kernels.h"
#include "shared_runs.h"

namespace looseleaf {
namespace {

// Rows of a block of queries: enough to use each tile of keys and values often, few enough for the cache.
constexpr int64_t block_rows = 48;
// Items per thread, so that the last to finish is not long alone.
constexpr int64_t items_per_thread = 4;
constexpr int64_t least_rows = 12;
// Rows that attend at once to what their sequences share: each tile is prepared once for all of them, and their scores
// stay in the second-level cache.
constexpr int64_t shared_rows = 192;

int64_t positions_per_block(int64_t group, int64_t positions, int64_t heads, int64_t threads) {
  int64_t rows = block_rows;
  while (rows > least_rows && positions * group / rows * heads < items_per_thread * threads) rows /= 2;
  return std::max<int64_t>(1, rows / group);
}

int64_t pieces_of(int64_t work, int64_t each) { return (work + each - 1) / each; }

class Cutter {
 public:
  Cutter(const KVLayout& layout, int64_t num_heads, const BatchView& batch, int64_t window, int64_t threads)
      : layout_(layout),
        heads_(layout.num_kv_heads),
        group_(num_heads / heads_),
        batch_(batch),
        window_(window),
        threads_(threads),
        row_stride_(plan_scratch(layout, 1).row_stride),
        most_positions_(positions_per_block(group_, batch.query_starts[batch.num_seqs] - batch.query_starts[0], heads_,
                                            threads)) {}

  WorkList cut() {
    cut_blocks();
    if (batch_.cascade != Cascade::off) share();
    for (size_t block = 0; block < list_.blocks.size(); ++block) attend_alone(int64_t(block));
    return std::move(list_);
  }

 private:
  void cut_blocks() {
    int64_t work = 0;
    first_blocks_.resize(size_t(batch_.num_seqs));
    for (int64_t seq = 0; seq < batch_.num_seqs; ++seq) {
      const int64_t begin = batch_.query_starts[seq], count = batch_.query_starts[seq + 1] - begin;
      const int64_t start = batch_.context_lens[seq] - count;
      first_blocks_[size_t(seq)] = int64_t(list_.blocks.size());
      // The last positions see most, and go first.
      for (int64_t end = count; end > 0;) {
        const int64_t first = std::max<int64_t>(0, (end - 1) / most_positions_ * most_positions_);
        const int64_t lowest = window_ > 0 ? std::max<int64_t>(0, start + first - window_ + 1) : 0;
        for (int64_t head = 0; head < heads_; ++head)
          list_.blocks.push_back({seq, head, begin + first, end - first, start + first, lowest / partition_tokens,
                                  pieces_of(start + end, partition_tokens), 0, -1, -1});
        const QueryBlock& block = list_.blocks.back();
        work += heads_ * (block.last_partition - block.first_partition) * block.num_positions;
        end = first;
      }
    }
    share_of_work_ = std::max<int64_t>(1, threads_ > 1 ? work / (threads_ * items_per_thread) : work);
    attended_.reserve(list_.blocks.size());
    for (const QueryBlock& block : list_.blocks) attended_.push_back(block.first_partition);
  }

  // Sequences of one block, whose queries see everything before them.
  void share() {
    std::vector<int64_t> whole(size_t(batch_.num_seqs));
    for (int64_t seq = 0; seq < batch_.num_seqs; ++seq) {
      const int64_t count = batch_.query_starts[seq + 1] - batch_.query_starts[seq];
      if (count <= most_positions_ && (window_ == 0 || window_ >= batch_.context_lens[seq]))
        whole[size_t(seq)] = whole_partitions(batch_, seq);
    }
    const SharedRuns shared = find_shared_runs(layout_.block_size, batch_, whole);
    for (const SharedRun& run : shared.runs) {
      const int32_t* seqs = shared.members.data() + run.first_member;
      const int64_t each = std::max<int64_t>(1, shared_rows / (group_ * largest(seqs, run.num_members)));
      const int64_t pieces = pieces_of(run.num_members, each);
      if (attended_[size_t(first_blocks_[size_t(*seqs)])] != run.first_partition || !pays(run)) continue;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t first = run.num_members * piece / pieces, last = run.num_members * (piece + 1) / pieces;
        attend_together(run, seqs + first, last - first);
      }
    }
  }

  // Measured (benchmarks/README.md). More rows at a time help most where a sequence has one, and with float32, whose
  // tiles are the largest; otherwise a few more rows do not make up for preparing their tiles.
  bool pays(const SharedRun& run) const {
    if (batch_.cascade == Cascade::on || group_ == 1 || layout_.type == KVType::float32) return true;
    return run.num_members >= 4 && run.num_members * (run.last_partition - run.first_partition) >= 8;
  }

  int64_t largest(const int32_t* seqs, int64_t count) const {
    int64_t most = 1;
    for (int64_t i = 0; i < count; ++i)
      most = std::max(most, int64_t(batch_.query_starts[seqs[i] + 1]) - batch_.query_starts[seqs[i]]);
    return most;
  }

  void attend_together(const SharedRun& run, const int32_t* seqs, int64_t count) {
    const int64_t first_query = int64_t(list_.query_rows.size());
    for (int64_t i = 0; i < count; ++i)
      for (int64_t row = batch_.query_starts[seqs[i]]; row < batch_.query_starts[seqs[i] + 1]; ++row)
        list_.query_rows.push_back(int32_t(row));
    for (int64_t head = 0; head < heads_; ++head) {
      const int64_t first_member = int64_t(list_.members.size());
      for (int64_t i = 0; i < count; ++i) list_.members.push_back(int32_t(first_blocks_[size_t(seqs[i])] + head));
      add_items({run.first_partition, run.last_partition, first_member, count,
                 int64_t(list_.query_rows.size()) - first_query, first_query, -1, false},
                true);
    }
  }

  void attend_alone(int64_t index) {
    const QueryBlock& block = list_.blocks[size_t(index)];
    const int64_t first_member = int64_t(list_.members.size());
    list_.members.push_back(int32_t(index));
    add_items({attended_[size_t(index)], block.last_partition, first_member, 1, block.num_positions, -1, -1, false},
              block.items > 0);
  }

  // `whole`, cut for the threads. `keep`: its blocks have other items.
  void add_items(const WorkItem& whole, bool keep) {
    const int64_t partitions = whole.last_partition - whole.first_partition;
    if (partitions == 0) return;
    const int64_t pieces = std::min(partitions, pieces_of(partitions * whole.positions, share_of_work_));
    list_.most_rows = std::max(list_.most_rows, whole.positions * group_);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      WorkItem item = whole;
      item.first_partition = whole.first_partition + partitions * piece / pieces;
      item.last_partition = whole.first_partition + partitions * (piece + 1) / pieces;
      if (keep || pieces > 1) keep_sums(item);
      for (int64_t i = 0; i < item.num_blocks; ++i) ++list_.blocks[member(item, i)].items;
      list_.items.push_back(item);
    }
  }

  void keep_sums(WorkItem& item) {
    const QueryBlock& any = list_.blocks[member(item, 0)];
    item.joined = item.first_partition == any.first_partition;
    item.partial = list_.partial_floats;
    list_.partial_floats += (item.joined ? 1 : item.last_partition - item.first_partition) *
                            partial_floats(row_stride_, item.positions * group_);
    int64_t position = 0;
    for (int64_t i = 0; i < item.num_blocks; ++i) {
      const size_t index = member(item, i);
      QueryBlock& block = list_.blocks[index];
      const int64_t place = int64_t(list_.places.size());
      list_.places.push_back({int64_t(list_.items.size()), position, -1});
      (block.last_place < 0 ? block.first_place : list_.places[size_t(block.last_place)].next) = place;
      block.last_place = place;
      attended_[index] = item.last_partition;
      position += block.num_positions;
    }
  }

  size_t member(const WorkItem& item, int64_t i) const { return size_t(list_.members[size_t(item.first_block + i)]); }

  const KVLayout& layout_;
  const int64_t heads_, group_;
  const BatchView& batch_;
  const int64_t window_, threads_, row_stride_, most_positions_;
  int64_t share_of_work_ = 1;
  std::vector<int64_t> first_blocks_;  // of each sequence
  std::vector<int64_t> attended_;      // of each block: up to which partition it has items
  WorkList list_;
};

}  // namespace

WorkList cut_work(const KVLayout& layout, int64_t num_heads, const BatchView& batch, int64_t sliding_window) {
  return Cutter(layout, num_heads, batch, sliding_window, num_threads()).cut();
}

}  // namespace looseleaf
