// Work shared out among torch's own threads.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>

namespace looseleaf {

inline int64_t num_threads() { return torch::stable::get_num_threads(); }

// Calls work(item, thread) once for each item in [0, items), whichever thread is free: `thread` is below num_threads()
// and names the caller's scratch. Results must not depend on who does what. Items should take 10 µs or more, or be
// few. Nested calls run on the calling thread.
template <class Work>
void parallel_items(int64_t items, const Work& work) {
  const int64_t threads = items < num_threads() ? items : num_threads();
  if (threads <= 1) {
    for (int64_t item = 0; item < items; ++item) work(item, int64_t(0));
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread)
      for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) work(item, thread);
  });
}

}  // namespace looseleaf
