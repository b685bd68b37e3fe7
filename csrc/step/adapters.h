// Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): y += scaling · (x · Aᵀ) · Bᵀ, each row with its own
// adapter or none. Both products form each sum in one fixed order, so a row's result depends on nothing but the row.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "../linear/packed_linear.h"
#include "step_buffer.h"

namespace looseleaf {

// The products of a layer that adapters add to: those that read the same input are one.
enum class AdaptedPlace { qkv, o, gate_up, down };
constexpr int64_t num_adapted_places = 4;

// One projection: q, k or v of qkv, gate or up of gate_up.
struct AdapterPart {
  const void* b;  // of the projection's outputs; see LowRankItem
  bool bfloat16;
  int64_t outputs;
  int64_t first_rank, rank;  // the columns of x · Aᵀ that are its own
  int64_t first_column;      // of its outputs in y; in gate_up 0 for gate, 16 for up: panels of 16 take turns
  float scaling;
};

// Without parts: this place is as the base model has it.
struct AdapterMatrices {
  PackedLinear a{};  // [sum of the parts' ranks][inputs]
  std::vector<AdapterPart> parts;
};

using AdapterLayer = std::array<AdapterMatrices, num_adapted_places>;
using Adapter = std::vector<AdapterLayer>;

// The rows of a step by adapter.
class AdapterRows {
 public:
  // of_row: the adapter of each row, or -1; null: no row has one. `adapters` must outlive the calls below.
  void sort(const std::vector<Adapter>& adapters, const int64_t* of_row, int64_t rows);
  bool empty() const { return groups_.empty(); }
  // Whether an adapter of rows [first, last) adds to `place`.
  bool touch(int64_t layer, AdaptedPlace place, int64_t first, int64_t last) const;
  // Adds to y what the adapters of rows [first, last) make of x, whose rows begin at `first` as those of y do.
  void add(int64_t layer, AdaptedPlace place, int64_t first, int64_t last, const float* x, int64_t x_stride, float* y,
           int64_t y_stride);
  int64_t bytes() const;

 private:
  struct Group {
    const Adapter* adapter;
    int64_t begin, end;  // in rows_
  };
  struct Item {
    const AdapterMatrices* matrices;
    const int64_t* rows;
    int64_t count;
  };
  void run(const Item& item, bool paired, int64_t first, const float* x, int64_t x_stride, float* y, int64_t y_stride,
           float* scratch) const;

  std::vector<int64_t> rows_;  // by adapter, then ascending
  std::vector<Group> groups_;
  std::vector<int64_t> starts_;
  std::vector<Item> items_;
  StepBuffer<float> scratch_;
};

}  // namespace looseleaf
