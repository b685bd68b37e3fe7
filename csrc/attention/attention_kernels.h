// Entry points of one instruction set's attention kernels: on the calling thread, unchecked.
#pragma once
#include <cstdint>

#include "attention.h"

namespace looseleaf {

// Sums are formed per partition of this many positions and merged in order, so that a row's bits depend on its own
// sequence alone: neither on who shares the step nor on how the work was cut.
constexpr int64_t partition_tokens = 256;

// What some rows saw of some partitions: the highest score, the sum of exp(score − highest), and the values summed
// with these weights. In one piece of memory of partial_floats.
struct PartialSums {
  float* highest;  // [rows]
  float* total;    // [rows]
  float* sums;     // [rows][row_stride]
};
PartialSums partial_sums(float* base, int64_t rows);
int64_t partial_floats(int64_t row_stride, int64_t rows);

// The query rows of some positions and one group of query heads, which share a KV head.
struct AttentionTask {
  KVLayout layout;
  const char* blocks;     // the layer's blocks, moved on to the KV head: block b's head lies at blocks + b · block_bytes
  const int32_t* table;
  const float* query;     // position i's rows at query + i · query_stride, [group][head_dim]
  int64_t query_stride;
  const int32_t* query_rows;  // if not null, position i's rows are at query + query_rows[i] · query_stride instead
  int64_t group, num_positions;
  int64_t first_position;  // row i's position in the sequence is first_position + i / group
  int64_t end;             // the table's tokens: nothing at this position or beyond is looked at
  AttentionOptions options;
};

// Where the parts of a thread's scratch begin, in bytes; all aligned to 64.
struct ScratchPlan {
  int64_t row_stride;  // floats of a row of sums: dim rounded up to 16
  int64_t query, query_scale, scores, weights, weight_scale, partial, running, wide, tiles, bounds, bytes;
};
ScratchPlan plan_scratch(const KVLayout& layout, int64_t rows);

struct AttentionKernels {
  void (*write)(const KVLayout& layout, char* layer, const float* key, int64_t key_stride, const float* value,
                int64_t value_stride, const int64_t* slots, int64_t first, int64_t last);
  // Partitions [first, last) of the task, into `result`: one PartialSums, or, if `each`, one per partition.
  void (*attend)(const AttentionTask& task, int64_t first, int64_t last, float* result, bool each, char* scratch);
  // Join the partition that comes next to those before it. A fresh `running` has highest −∞ and zeros.
  void (*merge)(int64_t rows, int64_t row_stride, PartialSums running, PartialSums next);
  // Position i's rows to out + i · out_stride, [group][head_dim]; lse, if not null, to lse + i · lse_stride, [group].
  void (*finish)(const AttentionTask& task, int64_t row_stride, float* running, float* out, int64_t out_stride,
                 float* lse, int64_t lse_stride);
};

}  // namespace looseleaf
