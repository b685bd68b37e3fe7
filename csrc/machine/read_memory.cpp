#include "read_memory.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../isa/isa.h"
#include "../parallel.h"

namespace looseleaf {

int64_t read_memory(torch::stable::Tensor data) {
  STD_TORCH_CHECK(data.is_cpu() && data.is_contiguous(), "read_memory: the tensor must be contiguous, on the CPU");
  const int64_t bytes = data.numel() * data.element_size();
  if (bytes == 0) return 0;
  const auto* base = static_cast<const char*>(data.data_ptr());
  constexpr int64_t chunk = 64;
  const int64_t chunks = bytes / chunk;
  const auto sum_words = kernels().machine.sum_words;
  std::atomic<uint32_t> total{0};
  // Equal parts, the same ones each time: what a thread has read lies in its own cache when it reads again.
  constexpr int64_t worth_a_thread = 16384 / chunk;
  const int64_t parts = std::clamp<int64_t>(chunks / worth_a_thread, 1, num_threads());
  const int64_t part = (chunks + parts - 1) / parts;
  const auto read = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = std::min(i * part, chunks), end = std::min(begin + part, chunks);
      total.fetch_add(sum_words(base + begin * chunk, end - begin), std::memory_order_relaxed);
    }
  };
  if (parts == 1) {
    read(0, 1);
  } else {
    torch::stable::parallel_for(0, parts, 1, read);
  }
  char rest[chunk] = {};
  std::memcpy(rest, base + chunks * chunk, size_t(bytes - chunks * chunk));
  return int64_t(uint32_t(total.load() + sum_words(rest, 1)));
}

std::string build_info() {
#if defined(__clang__)
  std::string info = "Clang " __clang_version__;
#elif defined(__GNUC__)
  std::string info = "GCC " __VERSION__;
#else
  std::string info = "unknown compiler";
#endif
#if defined(__OPTIMIZE__)
  info += ", optimised";
#else
  info += ", not optimised";
#endif
#if defined(__SANITIZE_ADDRESS__)
  info += ", AddressSanitizer";
#endif
  return info;
}

}  // namespace looseleaf
