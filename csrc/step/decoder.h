// The decoder that all supported families share, one step per call. Arguments are trusted: the operators check them.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "../attention/attention.h"
#include "../attention/work_items.h"
#include "../linear/packed_linear.h"
#include "adapters.h"
#include "step_buffer.h"

namespace looseleaf {

struct DecoderShape {
  int64_t vocab_size, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  float rms_norm_eps;

  int64_t query_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * kv_size(); }
};

struct DecoderLayer {
  const float* input_norm = nullptr;
  const float* q_norm = nullptr;  // both null: queries and keys are not normed
  const float* k_norm = nullptr;
  const float* post_attention_norm = nullptr;
  PackedLinear qkv{}, o{}, gate_up{}, down{};
  int64_t sliding_window = 0;  // 0: none
};

struct DecoderWeights {
  DecoderShape shape{};
  std::vector<DecoderLayer> layers;
  const float* norm = nullptr;
  PackedLinear lm_head{};
  // One row of hidden_size numbers per token; null: the rows of lm_head.
  const void* embedding = nullptr;
  bool embedding_is_bfloat16 = false;
};

struct StepView {
  int64_t num_tokens;
  const int64_t* token_ids;
  const int64_t* positions;
  const float* angles;  // by position: head_dim / 2 cosines, then as many sines
  PagedKV cache;
  BatchView batch;
  const int64_t* slots;
  bool all_wanted;
  const int64_t* wanted;  // unless all: rows of the step, ascending
  int64_t num_wanted;
  const int64_t* adapters;  // by row: a number below Decoder::adapters.size(), or -1; null: none has one
};

class Decoder {
 public:
  enum Phase { embed, norms, qkv, rotate, attention, out, gate_up, down, head, adapted, num_phases };

  DecoderWeights weights;  // complete before the first step
  std::vector<Adapter> adapters;

  // One step: writes keys and values of all tokens to the cache, and to `out` the hidden states of the wanted rows
  // after the final norm, [num_wanted][hidden_size]. The last layer computes no more than these need.
  void forward(const StepView& step, float* out);
  // hidden: [rows][hidden_size]; out: [rows][vocab_size].
  void logits(const float* hidden, int64_t rows, float* out);
  // Seconds since the last call, by phase.
  std::array<double, num_phases> take_phase_seconds();
  int64_t scratch_bytes() const;

 private:
  void embed_rows(const StepView& step);
  void write_keys_and_values(const StepView& step, const DecoderLayer& layer, int64_t index);
  void norm_rows(const float* x, const float* weight, int64_t rows, float* out);
  void mlp(const DecoderLayer& layer, int64_t index, int64_t rows);
  void gate_up_adapted(const DecoderLayer& layer, int64_t index, int64_t first, int64_t count);
  void adapt(int64_t layer, AdaptedPlace place, int64_t first, int64_t last, const float* x, int64_t x_stride, float* y,
             int64_t y_stride);
  BatchView keep_wanted(const StepView& step);
  const WorkList& work_of(const StepView& step, const BatchView& batch, int64_t sliding_window);
  template <class Work>
  void timed(Phase phase, const Work& work);

  StepBuffer<float> hidden_, normed_, qkv_, attended_, inner_, gate_up_;
  StepBuffer<int32_t> tables_, lens_, starts_;
  StepBuffer<int64_t> wanted_adapters_;
  AdapterRows adapter_rows_;
  std::vector<std::pair<int64_t, WorkList>> work_;  // of this step's attention, by sliding window
  std::array<double, num_phases> seconds_{};
};

}  // namespace looseleaf
