// The operators of the paged KV cache. Every shape, type, stride and index is checked here, in release builds too.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "../parallel.h"
#include "attention.h"
#include "attention_checks.h"
#include "shared_runs.h"
#include "work_items.h"

namespace looseleaf {

Cascade checked_cascade(const std::string& name) {
  if (name == "auto") return Cascade::automatic;
  if (name == "on") return Cascade::on;
  STD_TORCH_CHECK(name == "off", "cascade must be auto, on or off, not ", name);
  return Cascade::off;
}

void check_block_size(int64_t block_size) {
  STD_TORCH_CHECK(block_size >= 1 && block_size <= most_block_size, "block_size must be from 1 to ", most_block_size,
                  ", not ", block_size);
}

void check_head_dim(int64_t head_dim) {
  STD_TORCH_CHECK(head_dim >= 1 && head_dim <= most_head_dim, "head_dim must be from 1 to ", most_head_dim, ", not ",
                  head_dim);
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t tokens_per_write = 16;

KVType kv_type(const std::string& name) {
  if (name == "float32") return KVType::float32;
  if (name == "bfloat16") return KVType::bfloat16;
  STD_TORCH_CHECK(name == "int8", "KV dtype must be float32, bfloat16 or int8, not ", name);
  return KVType::int8;
}

KVLayout checked_layout(const std::string& dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  check_block_size(block_size);
  STD_TORCH_CHECK(num_kv_heads >= 1 && num_kv_heads <= most_kv_heads, "num_kv_heads must be from 1 to ", most_kv_heads,
                  ", not ", num_kv_heads);
  check_head_dim(head_dim);
  return {kv_type(dtype), 0, 0, block_size, num_kv_heads, head_dim};
}

PagedKV checked_cache(const Tensor& storage, int64_t layer, KVLayout layout) {
  STD_TORCH_CHECK(storage.is_cpu() && storage.scalar_type() == ScalarType::Byte && storage.dim() == 3 &&
                      storage.is_contiguous() && storage.size(2) == layout.block_bytes(),
                  "the cache must be a contiguous uint8 tensor on the CPU, [num_layers, num_blocks, ",
                  layout.block_bytes(), "]");
  layout.num_layers = storage.size(0);
  layout.num_blocks = storage.size(1);
  STD_TORCH_CHECK(layer >= 0 && layer < layout.num_layers, "layer ", layer, " is outside the cache of ",
                  layout.num_layers, " layers");
  char* base = static_cast<char*>(storage.data_ptr());
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(base) % 64 == 0, "the cache must be aligned to 64 bytes");
  return {layout, base};
}

// Rows [n, heads, head_dim] whose heads are contiguous.
void check_rows(const char* name, const Tensor& rows, int64_t heads, int64_t head_dim) {
  STD_TORCH_CHECK(rows.is_cpu() && rows.scalar_type() == ScalarType::Float && rows.dim() == 3, name,
                  " must be a float32 tensor on the CPU, [num_tokens, heads, head_dim]");
  STD_TORCH_CHECK(rows.size(2) == head_dim && (heads < 0 || rows.size(1) == heads), name, " must be [num_tokens, ",
                  heads, ", ", head_dim, "], not [", rows.size(0), ", ", rows.size(1), ", ", rows.size(2), "]");
  STD_TORCH_CHECK((rows.stride(2) == 1 || head_dim == 1) && (rows.stride(1) == head_dim || rows.size(1) == 1), name,
                  ": a token's heads must be contiguous");
}

void check_ints(const char* name, const Tensor& ints, ScalarType type, const char* type_name) {
  STD_TORCH_CHECK(ints.is_cpu() && ints.scalar_type() == type && ints.dim() == 1 && ints.is_contiguous(), name,
                  " must be a contiguous ", type_name, " vector on the CPU");
}

int64_t kv_block_bytes(std::string dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  return checked_layout(dtype, block_size, num_kv_heads, head_dim).block_bytes();
}

void kv_write(Tensor storage, int64_t layer, Tensor key, Tensor value, Tensor slots, std::string dtype,
              int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  const PagedKV cache = checked_cache(storage, layer, checked_layout(dtype, block_size, num_kv_heads, head_dim));
  check_rows("key", key, num_kv_heads, head_dim);
  check_rows("value", value, num_kv_heads, head_dim);
  check_ints("slots", slots, ScalarType::Long, "int64");
  const int64_t tokens = slots.numel();
  STD_TORCH_CHECK(key.size(0) == tokens && value.size(0) == tokens, "there are ", key.size(0), " keys and ",
                  value.size(0), " values for ", tokens, " slots");
  const auto* slot = static_cast<const int64_t*>(slots.data_ptr());
  const int64_t num_slots = cache.layout.num_blocks * block_size;
  for (int64_t i = 0; i < tokens; ++i)
    STD_TORCH_CHECK(slot[i] >= 0 && slot[i] < num_slots, "slot ", slot[i], " is outside the cache of ", num_slots,
                    " slots");
  const auto* keys = static_cast<const float*>(key.data_ptr());
  const auto* values = static_cast<const float*>(value.data_ptr());
  const int64_t key_stride = key.stride(0), value_stride = value.stride(0);
  parallel_items((tokens + tokens_per_write - 1) / tokens_per_write, [&](int64_t item, int64_t) {
    write_kv(cache, layer, keys, key_stride, values, value_stride, slot, item * tokens_per_write,
             std::min(tokens, (item + 1) * tokens_per_write));
  });
}

BatchView checked_batch(const KVLayout& layout, const Tensor& tables, const Tensor& lens, const Tensor& starts,
                        int64_t num_rows, const std::string& cascade) {
  STD_TORCH_CHECK(tables.is_cpu() && tables.scalar_type() == ScalarType::Int && tables.dim() == 2 &&
                      (tables.stride(1) == 1 || tables.size(1) <= 1),
                  "block_tables must be an int32 matrix on the CPU with contiguous rows");
  check_ints("context_lens", lens, ScalarType::Int, "int32");
  check_ints("query_starts", starts, ScalarType::Int, "int32");
  const int64_t num_seqs = lens.numel();
  STD_TORCH_CHECK(tables.size(0) == num_seqs && starts.numel() == num_seqs + 1, "there are ", tables.size(0),
                  " block tables and ", starts.numel(), " query_starts for ", num_seqs, " context lengths");
  const BatchView batch = {num_seqs, static_cast<const int32_t*>(tables.data_ptr()), tables.stride(0),
                           static_cast<const int32_t*>(lens.data_ptr()), static_cast<const int32_t*>(starts.data_ptr()),
                           checked_cascade(cascade)};
  STD_TORCH_CHECK(batch.query_starts[0] == 0 && batch.query_starts[num_seqs] == num_rows,
                  "query_starts must run from 0 to the ", num_rows, " query rows, not from ", batch.query_starts[0],
                  " to ", batch.query_starts[num_seqs]);
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int64_t length = batch.context_lens[i];
    const int64_t rows = int64_t(batch.query_starts[i + 1]) - batch.query_starts[i];
    STD_TORCH_CHECK(rows >= 0, "query_starts must not fall: ", batch.query_starts[i], ", then ",
                    batch.query_starts[i + 1]);
    STD_TORCH_CHECK(length >= 1 && length >= rows, "sequence ", i, " has ", rows, " query rows but a context of ",
                    length);
    const int64_t blocks = (length + layout.block_size - 1) / layout.block_size;
    STD_TORCH_CHECK(blocks <= tables.size(1), "sequence ", i, " of ", length, " tokens needs ", blocks,
                    " blocks but its table has ", tables.size(1));
    const int32_t* table = batch.block_tables + i * batch.table_stride;
    for (int64_t b = 0; b < blocks; ++b)
      STD_TORCH_CHECK(table[b] >= 0 && table[b] < layout.num_blocks, "block ", table[b], " of sequence ", i,
                      " is outside the pool of ", layout.num_blocks, " blocks");
  }
  return batch;
}

void kv_attend(Tensor storage, int64_t layer, Tensor query, Tensor out, std::optional<Tensor> lse, Tensor block_tables,
               Tensor context_lens, Tensor query_starts, std::string cascade, double scale, int64_t sliding_window,
               double softcap, std::string dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {
  const PagedKV cache = checked_cache(storage, layer, checked_layout(dtype, block_size, num_kv_heads, head_dim));
  check_rows("query", query, -1, head_dim);
  const int64_t rows = query.size(0), num_heads = query.size(1);
  STD_TORCH_CHECK(num_heads >= 1 && num_heads % num_kv_heads == 0, num_heads, " query heads do not share ",
                  num_kv_heads, " KV heads evenly");
  check_rows("out", out, num_heads, head_dim);
  STD_TORCH_CHECK(out.size(0) == rows, "out has ", out.size(0), " rows for ", rows, " queries");
  STD_TORCH_CHECK(sliding_window >= 0, "sliding_window must be at least 1, or 0 for none, not ", sliding_window);
  STD_TORCH_CHECK(softcap >= 0, "softcap must be positive, or 0 for none, not ", softcap);
  float* sums = nullptr;
  if (lse) {
    STD_TORCH_CHECK(lse->is_cpu() && lse->scalar_type() == ScalarType::Float && lse->dim() == 2 &&
                        lse->is_contiguous() && lse->size(0) == rows && lse->size(1) == num_heads,
                    "lse must be a contiguous float32 tensor [", rows, ", ", num_heads, "]");
    sums = static_cast<float*>(lse->data_ptr());
  }
  const BatchView batch = checked_batch(cache.layout, block_tables, context_lens, query_starts, rows, cascade);
  const WorkList work = cut_work(cache.layout, num_heads, batch, sliding_window);
  paged_attention(cache, layer, static_cast<const float*>(query.data_ptr()), query.stride(0),
                  static_cast<float*>(out.data_ptr()), out.stride(0), num_heads, batch, work,
                  {float(scale), sliding_window, float(softcap)}, sums);
}

// The runs of partitions that could be attended to at once for several sequences, one after the other: first partition,
// last, number of sequences, and these.
std::vector<int64_t> kv_shared_runs(Tensor block_tables, Tensor context_lens, Tensor query_starts, int64_t block_size) {
  check_block_size(block_size);
  KVLayout layout{};
  layout.block_size = block_size;
  layout.num_blocks = int64_t(1) << 31;
  check_ints("query_starts", query_starts, ScalarType::Int, "int32");
  STD_TORCH_CHECK(query_starts.numel() >= 1, "query_starts is empty");
  const int64_t rows = static_cast<const int32_t*>(query_starts.data_ptr())[query_starts.numel() - 1];
  const BatchView batch = checked_batch(layout, block_tables, context_lens, query_starts, rows, "on");
  std::vector<int64_t> whole(size_t(batch.num_seqs));
  for (int64_t seq = 0; seq < batch.num_seqs; ++seq) whole[size_t(seq)] = whole_partitions(batch, seq);
  const SharedRuns shared = find_shared_runs(block_size, batch, whole);
  std::vector<int64_t> flat;
  for (const SharedRun& run : shared.runs) {
    flat.insert(flat.end(), {run.first_partition, run.last_partition, run.num_members});
    const auto first = shared.members.begin() + run.first_member;
    flat.insert(flat.end(), first, first + run.num_members);
  }
  return flat;
}

}  // namespace
}  // namespace looseleaf

STABLE_TORCH_LIBRARY_FRAGMENT(looseleaf, library) {
  library.def("kv_block_bytes(str dtype, int block_size, int num_kv_heads, int head_dim) -> int");
  library.def(
      "kv_write(Tensor(a!) storage, int layer, Tensor key, Tensor value, Tensor slots, str dtype, int block_size, "
      "int num_kv_heads, int head_dim) -> ()");
  library.def(
      "kv_attend(Tensor storage, int layer, Tensor query, Tensor(a!) out, Tensor(b!)? lse, Tensor block_tables, "
      "Tensor context_lens, Tensor query_starts, str cascade, float scale, int sliding_window, float softcap, str dtype, "
      "int block_size, int num_kv_heads, int head_dim) -> ()");
  library.def(
      "kv_shared_runs(Tensor block_tables, Tensor context_lens, Tensor query_starts, int block_size) -> int[]");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("kv_block_bytes", TORCH_BOX(&looseleaf::kv_block_bytes));
  library.impl("kv_write", TORCH_BOX(&looseleaf::kv_write));
  library.impl("kv_attend", TORCH_BOX(&looseleaf::kv_attend));
  library.impl("kv_shared_runs", TORCH_BOX(&looseleaf::kv_shared_runs));
}
