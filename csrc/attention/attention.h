// Attention over the paged cache, on torch's threads. Arguments are trusted: the operators check them.
#pragma once
#include <cstdint>

#include "kv_layout.h"

namespace looseleaf {

// Whether sequences that share blocks have them read once for all: when it pays, whenever it can be, or never. The
// results are the same bits.
enum class Cascade { automatic, on, off };

// One step's sequences, as `AttentionBatch` in Python: query row j of sequence i (of q rows) is at position
// context_lens[i] - q + j and sees all positions up to its own.
struct BatchView {
  int64_t num_seqs;
  const int32_t* block_tables;  // [num_seqs][table_stride]
  int64_t table_stride;
  const int32_t* context_lens;  // [num_seqs]
  const int32_t* query_starts;  // [num_seqs + 1]
  Cascade cascade = Cascade::automatic;
};

struct AttentionOptions {
  float scale;
  int64_t sliding_window;  // a query at p sees p - window + 1 … p; 0: everything up to p
  float softcap;           // scores become cap · tanh(score / cap); 0: off
};

// Store keys and values of tokens [first, last) at their slots; on the calling thread. key and value: token t's heads
// at key + t · stride, [num_kv_heads][head_dim].
void write_kv(const PagedKV& cache, int64_t layer, const float* key, int64_t key_stride, const float* value,
              int64_t value_stride, const int64_t* slots, int64_t first, int64_t last);

// How a step is cut into work: for all layers whose sliding_window is the same, while the number of threads is.
struct WorkList;
WorkList cut_work(const KVLayout& layout, int64_t num_heads, const BatchView& batch, int64_t sliding_window);

// query: row r's heads at query + r · query_stride, [num_heads][head_dim]; out likewise. lse, if not null:
// [rows][num_heads], the log of each row's sum of exp(score). num_heads is a multiple of the cache's num_kv_heads.
void paged_attention(const PagedKV& cache, int64_t layer, const float* query, int64_t query_stride, float* out,
                     int64_t out_stride, int64_t num_heads, const BatchView& batch, const WorkList& work,
                     const AttentionOptions& options, float* lse);

}  // namespace looseleaf
