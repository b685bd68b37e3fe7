#include "decoder.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "../isa/isa.h"
#include "../parallel.h"

namespace looseleaf {
namespace {

// Numbers that a thread should have to work on before waking another one pays.
constexpr int64_t numbers_per_item = 1 << 14;
// Rows whose MLP is computed at once: their inner activations stay in cache, and bound the scratch memory.
constexpr int64_t mlp_rows = 512;

// work(first, last) over [0, rows), shared out when there is enough of it.
template <class Work>
void for_rows(int64_t rows, int64_t row_size, const Work& work) {
  const int64_t per_item = row_size < numbers_per_item ? numbers_per_item / row_size : 1;
  parallel_items((rows + per_item - 1) / per_item, [&](int64_t item, int64_t) {
    const int64_t first = item * per_item;
    work(first, first + per_item < rows ? first + per_item : rows);
  });
}

float bfloat16_value(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

}  // namespace

template <class Work>
void Decoder::timed(Phase phase, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  seconds_[phase] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Decoder::forward(const StepView& step, float* out) {
  const DecoderShape& shape = weights.shape;
  const int64_t tokens = step.num_tokens, heads = shape.query_size();
  float* hidden = hidden_.get(tokens * shape.hidden_size);
  float* normed = normed_.get(tokens * shape.hidden_size);
  float* qkv = qkv_.get(tokens * shape.qkv_size());
  float* attended = attended_.get(tokens * heads);
  const float scale = 1.0f / std::sqrt(float(shape.head_dim));

  BatchView batch = step.batch;
  work_.clear();
  int64_t rows = tokens;  // still needed: the wanted ones once the last layer's keys and values are written
  adapter_rows_.sort(adapters, step.adapters, tokens);
  timed(Phase::embed, [&] { embed_rows(step); });
  for (size_t index = 0; index < weights.layers.size(); ++index) {
    const DecoderLayer& layer = weights.layers[index];
    timed(Phase::norms, [&] { norm_rows(hidden, layer.input_norm, tokens, normed); });
    timed(Phase::qkv, [&] {
      linear(layer.qkv, normed, shape.hidden_size, tokens, qkv, shape.qkv_size(), Epilogue::store);
    });
    adapt(int64_t(index), AdaptedPlace::qkv, 0, tokens, normed, shape.hidden_size, qkv, shape.qkv_size());
    timed(Phase::rotate, [&] {
      write_keys_and_values(step, layer, int64_t(index));
      if (index + 1 == weights.layers.size() && !step.all_wanted) {
        batch = keep_wanted(step);
        work_.clear();
        rows = step.num_wanted;
      }
    });
    if (rows == 0) return;
    timed(Phase::attention, [&] {
      paged_attention(step.cache, int64_t(index), qkv, shape.qkv_size(), attended, heads, shape.num_heads, batch,
                      work_of(step, batch, layer.sliding_window), {scale, layer.sliding_window, 0.0f}, nullptr);
    });
    timed(Phase::out, [&] { linear(layer.o, attended, heads, rows, hidden, shape.hidden_size, Epilogue::add); });
    adapt(int64_t(index), AdaptedPlace::o, 0, rows, attended, heads, hidden, shape.hidden_size);
    mlp(layer, int64_t(index), rows);
  }
  timed(Phase::norms, [&] { norm_rows(hidden, weights.norm, rows, out); });
}

void Decoder::logits(const float* hidden, int64_t rows, float* out) {
  timed(Phase::head, [&] {
    linear(weights.lm_head, hidden, weights.shape.hidden_size, rows, out, weights.shape.vocab_size, Epilogue::store);
  });
}

std::array<double, Decoder::num_phases> Decoder::take_phase_seconds() {
  const auto taken = seconds_;
  seconds_ = {};
  return taken;
}

int64_t Decoder::scratch_bytes() const {
  return hidden_.bytes() + normed_.bytes() + qkv_.bytes() + attended_.bytes() + inner_.bytes() + gate_up_.bytes() +
         tables_.bytes() + lens_.bytes() + starts_.bytes() + wanted_adapters_.bytes() + adapter_rows_.bytes();
}

void Decoder::embed_rows(const StepView& step) {
  const int64_t size = weights.shape.hidden_size;
  float* hidden = hidden_.get(0);
  for_rows(step.num_tokens, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t token = step.token_ids[row];
      float* out = hidden + row * size;
      if (weights.embedding == nullptr) {
        unpack_row(weights.lm_head, token, out);
      } else if (weights.embedding_is_bfloat16) {
        const auto* from = static_cast<const uint16_t*>(weights.embedding) + token * size;
        for (int64_t i = 0; i < size; ++i) out[i] = bfloat16_value(from[i]);
      } else {
        std::memcpy(out, static_cast<const float*>(weights.embedding) + token * size, size_t(size) * sizeof(float));
      }
    }
  });
}

const WorkList& Decoder::work_of(const StepView& step, const BatchView& batch, int64_t sliding_window) {
  for (const auto& [window, work] : work_)
    if (window == sliding_window) return work;
  return work_.emplace_back(sliding_window, cut_work(step.cache.layout, weights.shape.num_heads, batch, sliding_window))
      .second;
}

// Norm (where the model has it) and rotate queries and keys in place; keys and values to their slots.
void Decoder::write_keys_and_values(const StepView& step, const DecoderLayer& layer, int64_t index) {
  const DecoderShape& shape = weights.shape;
  const StepKernels& kernel = kernels().step;
  float* qkv = qkv_.get(0);
  const int64_t stride = shape.qkv_size();
  for_rows(step.num_tokens, stride, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* angles = step.angles + step.positions[row] * shape.head_dim;
      for (int64_t head = 0; head < shape.num_heads + shape.num_kv_heads; ++head) {
        float* x = qkv + row * stride + head * shape.head_dim;
        const float* norm = head < shape.num_heads ? layer.q_norm : layer.k_norm;
        if (norm != nullptr) kernel.rms_norm(x, norm, shape.rms_norm_eps, shape.head_dim, x);
        kernel.rotate(x, angles, shape.head_dim / 2);
      }
    }
    const float* keys = qkv + shape.query_size();
    write_kv(step.cache, index, keys, stride, keys + shape.kv_size(), stride, step.slots, first, last);
  });
}

void Decoder::norm_rows(const float* x, const float* weight, int64_t rows, float* out) {
  const int64_t size = weights.shape.hidden_size;
  const auto norm = kernels().step.rms_norm;
  for_rows(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      norm(x + row * size, weight, weights.shape.rms_norm_eps, size, out + row * size);
  });
}

void Decoder::mlp(const DecoderLayer& layer, int64_t index, int64_t rows) {
  const int64_t size = weights.shape.hidden_size, inner_size = weights.shape.intermediate_size;
  float* hidden = hidden_.get(0);
  float* normed = normed_.get(0);
  float* inner = inner_.get((rows < mlp_rows ? rows : mlp_rows) * inner_size);
  for (int64_t first = 0; first < rows; first += mlp_rows) {
    const int64_t count = rows - first < mlp_rows ? rows - first : mlp_rows;
    float* part = hidden + first * size;
    timed(Phase::norms, [&] { norm_rows(part, layer.post_attention_norm, count, normed); });
    if (adapter_rows_.touch(index, AdaptedPlace::gate_up, first, first + count)) {
      gate_up_adapted(layer, index, first, count);
    } else {
      timed(Phase::gate_up, [&] { linear(layer.gate_up, normed, size, count, inner, inner_size, Epilogue::silu_mul); });
    }
    timed(Phase::down, [&] { linear(layer.down, inner, inner_size, count, part, size, Epilogue::add); });
    adapt(index, AdaptedPlace::down, first, first + count, inner, inner_size, part, size);
  }
}

// silu(gate) · up with the adapters added to gate and up. Both are stored before they are joined, panels of 16 taking
// turns as in the packed weight, by the same operations in the same order as Epilogue::silu_mul: rows without an
// adapter get the same bits.
void Decoder::gate_up_adapted(const DecoderLayer& layer, int64_t index, int64_t first, int64_t count) {
  const int64_t size = weights.shape.hidden_size, inner_size = weights.shape.intermediate_size;
  const float* normed = normed_.get(0);
  float* inner = inner_.get(0);
  PackedLinear unpaired = layer.gate_up;
  const int64_t width = 16 * unpaired.panels();
  unpaired.paired = false;
  unpaired.out_features = width;
  float* gate_up = gate_up_.get(count * width);
  timed(Phase::gate_up, [&] { linear(unpaired, normed, size, count, gate_up, width, Epilogue::store); });
  adapt(index, AdaptedPlace::gate_up, first, first + count, normed, size, gate_up, width);
  timed(Phase::gate_up, [&] {
    const auto silu_mul = kernels().step.silu_mul;
    for_rows(count, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) silu_mul(gate_up + row * width, inner_size, inner + row * inner_size);
    });
  });
}

void Decoder::adapt(int64_t layer, AdaptedPlace place, int64_t first, int64_t last, const float* x, int64_t x_stride,
                    float* y, int64_t y_stride) {
  if (adapter_rows_.empty()) return;
  timed(Phase::adapted, [&] { adapter_rows_.add(layer, place, first, last, x, x_stride, y, y_stride); });
}

// Move the wanted rows' residual and queries to the front. Each run of neighbouring rows becomes a sequence that ends
// where the run does; attention to a position does not depend on the rows beside it.
BatchView Decoder::keep_wanted(const StepView& step) {
  const BatchView& batch = step.batch;
  const DecoderShape& shape = weights.shape;
  float* hidden = hidden_.get(0);
  float* qkv = qkv_.get(0);
  int32_t* tables = tables_.get(step.num_wanted * batch.table_stride);
  int32_t* lens = lens_.get(step.num_wanted);
  int32_t* starts = starts_.get(step.num_wanted + 1);

  int64_t runs = 0, seq = 0;
  for (int64_t i = 0; i < step.num_wanted; ++i) {
    const int64_t row = step.wanted[i];
    std::memmove(hidden + i * shape.hidden_size, hidden + row * shape.hidden_size,
                 size_t(shape.hidden_size) * sizeof(float));
    std::memmove(qkv + i * shape.qkv_size(), qkv + row * shape.qkv_size(), size_t(shape.query_size()) * sizeof(float));
    while (row >= batch.query_starts[seq + 1]) ++seq;
    const bool goes_on = i > 0 && step.wanted[i - 1] == row - 1 && row > batch.query_starts[seq];
    if (!goes_on) {
      starts[runs] = int32_t(i);
      std::memcpy(tables + runs * batch.table_stride, batch.block_tables + seq * batch.table_stride,
                  size_t(batch.table_stride) * sizeof(int32_t));
      ++runs;
    }
    lens[runs - 1] = int32_t(batch.context_lens[seq] - (batch.query_starts[seq + 1] - 1 - row));
  }
  starts[runs] = int32_t(step.num_wanted);
  if (step.adapters != nullptr) {
    int64_t* kept = wanted_adapters_.get(step.num_wanted);
    for (int64_t i = 0; i < step.num_wanted; ++i) kept[i] = step.adapters[step.wanted[i]];
    adapter_rows_.sort(adapters, kept, step.num_wanted);
  }
  return {runs, tables, batch.table_stride, lens, starts, batch.cascade};
}

}  // namespace looseleaf
