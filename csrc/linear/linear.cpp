// Shares y = x · Wᵀ out among the threads: rows in blocks that fit the second-level cache, panels in groups.
#include "packed_linear.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "../isa/isa.h"
#include "../parallel.h"

namespace looseleaf {
namespace {

constexpr int64_t rows_at_once = 512;        // bounds the scratch: 512 rows of int16 or bfloat16
constexpr int64_t block_bytes = 160 * 1024;  // of a block's rows
constexpr int64_t fewest_rows = 48;          // of a block: a panel is worth loading for that many
constexpr double worth_a_thread_ns = 8000, item_ns = 40000;

int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Kept between calls, one per calling thread; grows only.
char* scratch(size_t bytes) {
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<char, Free> memory;
  thread_local size_t held = 0;
  if (bytes > held) {
    memory.reset();
    held = 0;
    memory.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(64))));
    held = bytes;
  }
  return memory.get();
}

// The rows as the kernels read them: in place, or rounded or quantised once into scratch.
Rows prepared(const PackedLinear& weight, const float* x, int64_t x_stride, int64_t rows, RowType type) {
  const int64_t count = weight.in_features, padded = weight.padded_in(), groups = padded / 32;
  if (type == RowType::float32 && padded == count) return {x, x_stride, nullptr, nullptr};

  const int64_t row_bytes = padded * (type == RowType::float32 ? 4 : 2);
  const int64_t group_bytes = type == RowType::int16 ? rows * groups * 4 : 0;
  char* base = scratch(size_t(rows * row_bytes + 2 * group_bytes));
  auto* scales = reinterpret_cast<float*>(base + rows * row_bytes);
  auto* sums = reinterpret_cast<int32_t*>(base + rows * row_bytes + group_bytes);
  const LinearKernels& kernel = kernels().linear;
  const auto prepare = [&](int64_t row) {
    const float* from = x + row * x_stride;
    char* to = base + row * row_bytes;
    if (type == RowType::float32) {
      std::memcpy(to, from, size_t(count) * 4);
      std::memset(to + 4 * count, 0, size_t(padded - count) * 4);
    } else if (type == RowType::bfloat16) {
      kernel.round_row(from, count, reinterpret_cast<uint16_t*>(to));
    } else {
      kernel.quantize_row(from, count, reinterpret_cast<int16_t*>(to), scales + row * groups, sums + row * groups);
    }
  };
  const int64_t rows_per_item = std::max<int64_t>(1, 16384 / padded);
  parallel_items(blocks_of(rows, rows_per_item), [&](int64_t item, int64_t) {
    const int64_t last = std::min(rows, (item + 1) * rows_per_item);
    for (int64_t row = item * rows_per_item; row < last; ++row) prepare(row);
  });
  return {base, padded, scales, sums};
}

// The first panel of group `group` of `groups`: as equal as whole units of `unit` panels allow.
int64_t group_start(int64_t group, int64_t groups, int64_t panels, int64_t unit) {
  return std::min(panels, blocks_of(panels, unit) * group / groups * unit);
}

}  // namespace

void linear(const PackedLinear& weight, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
            Epilogue epilogue) {
  const LinearKernels& kernel = kernels().linear;
  const RowType type = kernel.row_type(weight.type);
  const int64_t padded = weight.padded_in(), panels = weight.panels();
  for (int64_t done = 0; done < rows; done += rows_at_once) {
    const int64_t now = std::min(rows_at_once, rows - done);
    const Rows ready = prepared(weight, x + done * x_stride, x_stride, now, type);

    const int64_t granule = kernel.row_granule;
    const int64_t fitting = block_bytes / (padded * (type == RowType::float32 ? 4 : 2));
    const int64_t row_blocks = blocks_of(now, std::max(fewest_rows, fitting) / granule * granule);
    const int64_t block_rows = blocks_of(blocks_of(now, row_blocks), granule) * granule;
    // Guesses good enough to size the items: bytes at 20 GB/s or arithmetic at 60 GFLOP/s on one thread.
    const double reading = double(weight.panel_bytes()) / 20;
    const double arithmetic = double(32 * padded * std::min(now, block_rows)) / 60;
    const double block_ns = std::max(reading, arithmetic) * double(panels);
    // Panels are shared out in pairs, or in eights where that leaves the threads as equal.
    const int64_t threads = num_threads(), unit = panels >= 64 * threads ? 8 : 2;
    int64_t groups = 1;
    if (block_ns * double(row_blocks) > worth_a_thread_ns) {
      const int64_t wanted = std::max(int64_t(block_ns / item_ns), blocks_of(threads, row_blocks));
      groups = std::min(wanted, blocks_of(8 * threads, row_blocks));
      if (row_blocks % threads != 0) groups = blocks_of(groups, threads) * threads;
      groups = std::min(groups, blocks_of(panels, unit));
    }
    parallel_items(row_blocks * groups, [&](int64_t item, int64_t) {
      const int64_t group = item / row_blocks, block = item % row_blocks;
      const int64_t first = block * block_rows, last = std::min(now, first + block_rows);
      if (first >= last) return;
      kernel.multiply({&weight, ready, first, last, group_start(group, groups, panels, unit),
                       group_start(group + 1, groups, panels, unit), y + done * y_stride, y_stride, epilogue});
    });
  }
}

}  // namespace looseleaf
