// Operators that build a decoder piece by piece, run it and end it. Python holds it as a number.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../attention/attention_checks.h"
#include "../linear/linear_tensors.h"
#include "decoder.h"
#include "step_checks.h"

namespace looseleaf {
namespace {

using torch::headeronly::ScalarType;

struct Entry {
  std::mutex in_use;  // a decoder has one set of scratch buffers
  Decoder decoder;
  std::vector<Tensor> kept;  // what the weights point into
  bool complete = false;
};

struct Registry {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Entry>> entries;
  int64_t next = 1;
};

Registry& registry() {
  static Registry all;
  return all;
}

std::shared_ptr<Entry> find(int64_t decoder) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().entries.find(decoder);
  STD_TORCH_CHECK(found != registry().entries.end(), "there is no decoder ", decoder);
  return found->second;
}

int64_t decoder_create(int64_t vocab_size, int64_t hidden_size, int64_t intermediate_size, int64_t num_heads,
                       int64_t num_kv_heads, int64_t head_dim, double rms_norm_eps,
                       std::vector<int64_t> sliding_windows) {
  for (const int64_t size : {vocab_size, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim})
    STD_TORCH_CHECK(size >= 1 && size < (int64_t(1) << 31), "a decoder cannot have a size of ", size);
  STD_TORCH_CHECK(num_heads % num_kv_heads == 0 && head_dim % 2 == 0 && !sliding_windows.empty(),
                  "heads do not fit together, or there are no layers");
  STD_TORCH_CHECK(num_kv_heads <= most_kv_heads, "a decoder cannot have ", num_kv_heads, " KV heads");
  check_head_dim(head_dim);
  DecoderWeights weights;
  weights.shape = {vocab_size,   hidden_size, intermediate_size,  num_heads,
                   num_kv_heads, head_dim,    float(rms_norm_eps)};
  weights.layers.resize(sliding_windows.size());
  for (size_t i = 0; i < sliding_windows.size(); ++i) {
    STD_TORCH_CHECK(sliding_windows[i] >= 0, "a sliding window of ", sliding_windows[i]);
    weights.layers[i].sliding_window = sliding_windows[i];
  }
  auto entry = std::make_shared<Entry>();
  entry->decoder.weights = std::move(weights);
  const std::lock_guard lock(registry().mutex);
  const int64_t number = registry().next++;
  registry().entries[number] = std::move(entry);
  return number;
}

void decoder_destroy(int64_t decoder) {
  const std::lock_guard lock(registry().mutex);
  registry().entries.erase(decoder);
}

DecoderLayer& layer_of(Entry& entry, int64_t layer) {
  auto& layers = entry.decoder.weights.layers;
  STD_TORCH_CHECK(layer >= 0 && layer < int64_t(layers.size()), "there is no layer ", layer);
  return layers[size_t(layer)];
}

// `layer` does not matter for "norm".
void decoder_set_norm(int64_t decoder, int64_t layer, std::string name, Tensor weight) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  DecoderWeights& weights = entry->decoder.weights;
  const float* data = float_data(weight, 1, name.c_str());
  const bool per_head = name == "q_norm" || name == "k_norm";
  const int64_t size = per_head ? weights.shape.head_dim : weights.shape.hidden_size;
  STD_TORCH_CHECK(weight.numel() == size, name, " has ", weight.numel(), " numbers instead of ", size);
  if (name == "norm") {
    weights.norm = data;
  } else {
    DecoderLayer& into = layer_of(*entry, layer);
    if (name == "input_norm") into.input_norm = data;
    else if (name == "post_attention_norm") into.post_attention_norm = data;
    else if (name == "q_norm") into.q_norm = data;
    else if (name == "k_norm") into.k_norm = data;
    else STD_TORCH_CHECK(false, "there is no norm '", name, "'");
  }
  entry->kept.push_back(std::move(weight));
}

// `layer` does not matter for "lm_head".
void decoder_set_linear(int64_t decoder, int64_t layer, std::string name, std::string type, int64_t out_features,
                        int64_t in_features, Tensor weight, std::optional<Tensor> scales, std::optional<Tensor> minima,
                        std::optional<Tensor> bias) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  DecoderWeights& weights = entry->decoder.weights;
  const DecoderShape& shape = weights.shape;
  PackedLinear* into = nullptr;
  int64_t outputs = shape.hidden_size, inputs = shape.hidden_size;
  if (name == "lm_head") {
    into = &weights.lm_head;
    outputs = shape.vocab_size;
  } else if (name == "qkv") {
    into = &layer_of(*entry, layer).qkv;
    outputs = shape.qkv_size();
  } else if (name == "o") {
    into = &layer_of(*entry, layer).o;
    inputs = shape.query_size();
  } else if (name == "gate_up") {
    into = &layer_of(*entry, layer).gate_up;
    outputs = 2 * shape.intermediate_size;
  } else {
    STD_TORCH_CHECK(name == "down", "there is no linear layer '", name, "'");
    into = &layer_of(*entry, layer).down;
    inputs = shape.intermediate_size;
  }
  STD_TORCH_CHECK(out_features == outputs && in_features == inputs, name, " is [", out_features, ", ", in_features,
                  "] instead of [", outputs, ", ", inputs, "]");
  *into = packed_linear(weight, scales, minima, bias, type, out_features, in_features, name == "gate_up");
  entry->kept.push_back(weight);
  for (const auto& part : {scales, minima, bias})
    if (part) entry->kept.push_back(*part);
}

// For models whose output matrix is not the embedding.
void decoder_set_embedding(int64_t decoder, Tensor table) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  DecoderWeights& weights = entry->decoder.weights;
  const bool bfloat16 = table.scalar_type() == ScalarType::BFloat16;
  STD_TORCH_CHECK(table.is_cpu() && table.is_contiguous() && (bfloat16 || table.scalar_type() == ScalarType::Float),
                  "the embedding must be contiguous float32 or bfloat16 on the CPU");
  STD_TORCH_CHECK(table.dim() == 2 && table.size(0) == weights.shape.vocab_size &&
                      table.size(1) == weights.shape.hidden_size,
                  "the embedding must be [", weights.shape.vocab_size, ", ", weights.shape.hidden_size, "]");
  weights.embedding = table.data_ptr();
  weights.embedding_is_bfloat16 = bfloat16;
  entry->kept.push_back(std::move(table));
}

// Makes room for an adapter that adds to nothing yet, and returns its number.
int64_t decoder_add_adapter(int64_t decoder) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  entry->decoder.adapters.emplace_back(entry->decoder.weights.layers.size());
  return int64_t(entry->decoder.adapters.size()) - 1;
}

AdapterMatrices& adapter_matrices(Entry& entry, int64_t adapter, int64_t layer, const std::string& name) {
  auto& adapters = entry.decoder.adapters;
  STD_TORCH_CHECK(adapter >= 0 && adapter < int64_t(adapters.size()), "there is no adapter ", adapter);
  layer_of(entry, layer);
  auto place = AdaptedPlace::down;
  if (name == "qkv") place = AdaptedPlace::qkv;
  else if (name == "o") place = AdaptedPlace::o;
  else if (name == "gate_up") place = AdaptedPlace::gate_up;
  else STD_TORCH_CHECK(name == "down", "there is no linear layer '", name, "'");
  return adapters[size_t(adapter)][size_t(layer)][size_t(place)];
}

// A: the rows of all parts of a linear layer, one part after another. Then comes decoder_add_adapter_part for each.
void decoder_set_adapter_input(int64_t decoder, int64_t adapter, int64_t layer, std::string name, std::string type,
                               int64_t ranks, int64_t in_features, Tensor a) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  AdapterMatrices& matrices = adapter_matrices(*entry, adapter, layer, name);
  STD_TORCH_CHECK(matrices.parts.empty(), "the adapter has ", name, " already");
  const DecoderShape& shape = entry->decoder.weights.shape;
  const int64_t inputs = name == "o" ? shape.query_size() : name == "down" ? shape.intermediate_size : shape.hidden_size;
  STD_TORCH_CHECK(in_features == inputs && ranks >= 1, "A of ", name, " has ", in_features, " inputs instead of ", inputs);
  matrices.a = packed_linear(a, {}, {}, {}, type, ranks, in_features, false);
  entry->kept.push_back(std::move(a));
}

// B of part `part`, in the layout of LowRankItem, scaled: it reads columns [first_rank, first_rank + rank) of x · Aᵀ.
void decoder_add_adapter_part(int64_t decoder, int64_t adapter, int64_t layer, std::string name, int64_t part,
                              int64_t first_rank, int64_t rank, double scaling, int64_t outputs, Tensor b) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  AdapterMatrices& matrices = adapter_matrices(*entry, adapter, layer, name);
  const DecoderShape& shape = entry->decoder.weights.shape;
  const int64_t last = name == "qkv" ? 2 : name == "gate_up" ? 1 : 0;
  STD_TORCH_CHECK(part >= 0 && part <= last, name, " has no part ", part);
  int64_t expected = shape.hidden_size, column = 0;
  if (name == "qkv") {
    expected = part == 0 ? shape.query_size() : shape.kv_size();
    column = part == 0 ? 0 : shape.query_size() + (part - 1) * shape.kv_size();
  } else if (name == "gate_up") {
    expected = shape.intermediate_size;
    column = 16 * part;
  }
  STD_TORCH_CHECK(outputs == expected, "B of ", name, " has ", outputs, " outputs instead of ", expected);
  STD_TORCH_CHECK(matrices.a.weight != nullptr && first_rank >= 0 && rank >= 1 &&
                      rank <= matrices.a.out_features - first_rank,
                  "B of ", name, " reads beyond A");
  for (const AdapterPart& other : matrices.parts)
    STD_TORCH_CHECK(other.first_column != column && (other.first_rank + other.rank <= first_rank ||
                                                     first_rank + rank <= other.first_rank),
                    "two parts of ", name, " overlap");
  const bool bfloat16 = b.scalar_type() == ScalarType::BFloat16;
  STD_TORCH_CHECK(b.is_cpu() && b.is_contiguous() && (bfloat16 || b.scalar_type() == ScalarType::Float),
                  "B of ", name, " must be contiguous float32 or bfloat16 on the CPU");
  STD_TORCH_CHECK(b.numel() == (outputs + 15) / 16 * ((rank + 1) / 2) * 32, "B of ", name, " has ", b.numel(),
                  " numbers, which is not ", outputs, " outputs of rank ", rank);
  matrices.parts.push_back({b.data_ptr(), bfloat16, outputs, first_rank, rank, column, float(scaling)});
  entry->kept.push_back(std::move(b));
}

void check_complete(Entry& entry) {
  if (entry.complete) return;
  const DecoderWeights& weights = entry.decoder.weights;
  STD_TORCH_CHECK(weights.norm != nullptr && weights.lm_head.weight != nullptr, "the decoder lacks its last weights");
  for (const DecoderLayer& layer : weights.layers) {
    STD_TORCH_CHECK(layer.input_norm && layer.post_attention_norm && layer.qkv.weight && layer.o.weight &&
                        layer.gate_up.weight && layer.down.weight,
                    "a layer of the decoder lacks weights");
  }
  entry.complete = true;
}

void decoder_forward(int64_t decoder, Tensor token_ids, Tensor positions, Tensor angles, Tensor kv_storage,
                     std::string kv_type, int64_t num_blocks, int64_t block_size, Tensor block_tables,
                     Tensor context_lens, Tensor query_starts, Tensor slots, std::string cascade,
                     std::optional<Tensor> wanted, std::optional<Tensor> adapters, Tensor out) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  check_complete(*entry);
  const StepTensors step{token_ids,    positions,    angles,       kv_storage, kv_type, num_blocks, block_size,
                         block_tables, context_lens, query_starts, slots,      cascade, wanted,     adapters,
                         out};
  const DecoderWeights& weights = entry->decoder.weights;
  const StepView view = check_step(step, weights.shape, int64_t(weights.layers.size()),
                                   int64_t(entry->decoder.adapters.size()));
  entry->decoder.forward(view, static_cast<float*>(out.data_ptr()));
}

void decoder_logits(int64_t decoder, Tensor hidden, Tensor out) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  check_complete(*entry);
  const DecoderShape& shape = entry->decoder.weights.shape;
  const float* rows = float_data(hidden, 2, "hidden");
  float_data(out, 2, "out");
  STD_TORCH_CHECK(hidden.size(1) == shape.hidden_size && out.size(0) == hidden.size(0) &&
                      out.size(1) == shape.vocab_size,
                  "hidden must be [rows, ", shape.hidden_size, "] and out [rows, ", shape.vocab_size, "]");
  if (hidden.size(0) > 0) entry->decoder.logits(rows, hidden.size(0), static_cast<float*>(out.data_ptr()));
}

// Seconds since the last call in: embed, norms, qkv, rotate and write, attention, out, gate_up, down, head, adapters.
std::vector<double> decoder_phase_seconds(int64_t decoder) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  const auto seconds = entry->decoder.take_phase_seconds();
  return {seconds.begin(), seconds.end()};
}

int64_t decoder_scratch_bytes(int64_t decoder) {
  const auto entry = find(decoder);
  const std::lock_guard lock(entry->in_use);
  return entry->decoder.scratch_bytes();
}

}  // namespace
}  // namespace looseleaf

STABLE_TORCH_LIBRARY_FRAGMENT(looseleaf, library) {
  library.def(
      "decoder_create(int vocab_size, int hidden_size, int intermediate_size, int num_heads, int num_kv_heads, "
      "int head_dim, float rms_norm_eps, int[] sliding_windows) -> int");
  library.def("decoder_destroy(int decoder) -> ()");
  library.def("decoder_set_norm(int decoder, int layer, str name, Tensor weight) -> ()");
  library.def(
      "decoder_set_linear(int decoder, int layer, str name, str type, int out_features, int in_features, "
      "Tensor weight, Tensor? scales, Tensor? minima, Tensor? bias) -> ()");
  library.def("decoder_set_embedding(int decoder, Tensor table) -> ()");
  library.def(
      "decoder_forward(int decoder, Tensor token_ids, Tensor positions, Tensor angles, Tensor(a!) kv_storage, "
      "str kv_type, int num_blocks, int block_size, Tensor block_tables, Tensor context_lens, Tensor query_starts, "
      "Tensor slots, str cascade, Tensor? wanted, Tensor? adapters, Tensor(b!) out) -> ()");
  library.def("decoder_add_adapter(int decoder) -> int");
  library.def(
      "decoder_set_adapter_input(int decoder, int adapter, int layer, str name, str type, int ranks, int in_features, "
      "Tensor a) -> ()");
  library.def(
      "decoder_add_adapter_part(int decoder, int adapter, int layer, str name, int part, int first_rank, int rank, "
      "float scaling, int outputs, Tensor b) -> ()");
  library.def("decoder_logits(int decoder, Tensor hidden, Tensor(a!) out) -> ()");
  library.def("decoder_phase_seconds(int decoder) -> float[]");
  library.def("decoder_scratch_bytes(int decoder) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("decoder_create", TORCH_BOX(&looseleaf::decoder_create));
  library.impl("decoder_destroy", TORCH_BOX(&looseleaf::decoder_destroy));
  library.impl("decoder_set_norm", TORCH_BOX(&looseleaf::decoder_set_norm));
  library.impl("decoder_set_linear", TORCH_BOX(&looseleaf::decoder_set_linear));
  library.impl("decoder_set_embedding", TORCH_BOX(&looseleaf::decoder_set_embedding));
  library.impl("decoder_add_adapter", TORCH_BOX(&looseleaf::decoder_add_adapter));
  library.impl("decoder_set_adapter_input", TORCH_BOX(&looseleaf::decoder_set_adapter_input));
  library.impl("decoder_add_adapter_part", TORCH_BOX(&looseleaf::decoder_add_adapter_part));
  library.impl("decoder_forward", TORCH_BOX(&looseleaf::decoder_forward));
  library.impl("decoder_logits", TORCH_BOX(&looseleaf::decoder_logits));
  library.impl("decoder_phase_seconds", TORCH_BOX(&looseleaf::decoder_phase_seconds));
  library.impl("decoder_scratch_bytes", TORCH_BOX(&looseleaf::decoder_scratch_bytes));
}
