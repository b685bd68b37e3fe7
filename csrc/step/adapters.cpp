#include "adapters.h"

#include <algorithm>
#include <cstring>

#include "../isa/isa.h"
#include "../parallel.h"

namespace looseleaf {
namespace {

// Rows that a thread takes through both products at once: bounds its scratch.
constexpr int64_t most_rows = 32;

const AdapterMatrices& matrices_at(const Adapter& adapter, int64_t layer, AdaptedPlace place) {
  return adapter[size_t(layer)][size_t(place)];
}

// Numbers of scratch for one row: its input and x · Aᵀ.
int64_t row_scratch(const AdapterMatrices& matrices) { return matrices.a.in_features + matrices.a.out_features; }

}  // namespace

void AdapterRows::sort(const std::vector<Adapter>& adapters, const int64_t* of_row, int64_t rows) {
  groups_.clear();
  if (of_row == nullptr) return;
  starts_.assign(adapters.size() + 1, 0);
  for (int64_t row = 0; row < rows; ++row)
    if (of_row[row] >= 0) ++starts_[size_t(of_row[row]) + 1];
  for (size_t i = 0; i < adapters.size(); ++i) {
    starts_[i + 1] += starts_[i];
    if (starts_[i] < starts_[i + 1]) groups_.push_back({&adapters[i], starts_[i], starts_[i + 1]});
  }
  rows_.resize(size_t(starts_.back()));
  for (int64_t row = 0; row < rows; ++row)
    if (of_row[row] >= 0) rows_[size_t(starts_[size_t(of_row[row])]++)] = row;
}

bool AdapterRows::touch(int64_t layer, AdaptedPlace place, int64_t first, int64_t last) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) {
    if (matrices_at(*group.adapter, layer, place).parts.empty()) return false;
    const auto end = rows_.begin() + group.end;
    const auto row = std::lower_bound(rows_.begin() + group.begin, end, first);
    return row != end && *row < last;
  });
}

void AdapterRows::add(int64_t layer, AdaptedPlace place, int64_t first, int64_t last, const float* x, int64_t x_stride,
                      float* y, int64_t y_stride) {
  const int64_t threads = num_threads();
  const int64_t rows = std::clamp((last - first + threads - 1) / threads, int64_t(1), most_rows);
  int64_t largest = 0;
  items_.clear();
  for (const Group& group : groups_) {
    const AdapterMatrices& matrices = matrices_at(*group.adapter, layer, place);
    if (matrices.parts.empty()) continue;
    const int64_t *begin = rows_.data() + group.begin, *end = rows_.data() + group.end;
    const int64_t* row = std::lower_bound(begin, end, first);
    for (end = std::lower_bound(row, end, last); row < end; row += rows) {
      items_.push_back({&matrices, row, std::min(rows, int64_t(end - row))});
      largest = std::max(largest, items_.back().count * row_scratch(matrices));
    }
  }
  largest = (largest + 15) / 16 * 16;  // one thread's part ends where a line of the cache does
  float* scratch = scratch_.get(threads * largest);
  parallel_items(int64_t(items_.size()), [&](int64_t item, int64_t thread) {
    run(items_[size_t(item)], place == AdaptedPlace::gate_up, first, x, x_stride, y, y_stride,
        scratch + thread * largest);
  });
}

void AdapterRows::run(const Item& item, bool paired, int64_t first, const float* x, int64_t x_stride, float* y,
                      int64_t y_stride, float* scratch) const {
  const PackedLinear& a = item.matrices->a;
  const int64_t count = item.count, inputs = a.in_features, ranks = a.out_features;
  const bool neighbours = item.rows[count - 1] - item.rows[0] == count - 1;
  const auto at = [&](int64_t i) { return item.rows[i] - first; };
  float* low = scratch;
  float* gathered = low + count * ranks;

  const float* from = x + at(0) * x_stride;
  if (!neighbours) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(gathered + i * inputs, x + at(i) * x_stride, size_t(inputs) * sizeof(float));
    from = gathered;
  }
  linear(a, from, neighbours ? x_stride : inputs, count, low, ranks, Epilogue::store);
  for (const AdapterPart& part : item.matrices->parts) {
    float* own = low + part.first_rank;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < part.rank; ++r) own[i * ranks + r] *= part.scaling;
    kernels().step.low_rank({part.b, part.bfloat16, part.rank, part.outputs, own, ranks, item.rows, count, first,
                             y + part.first_column, y_stride, paired ? 32 : 16});
  }
}

int64_t AdapterRows::bytes() const {
  return scratch_.bytes() + int64_t(rows_.capacity() * sizeof(int64_t) + items_.capacity() * sizeof(Item));
}

}  // namespace looseleaf
