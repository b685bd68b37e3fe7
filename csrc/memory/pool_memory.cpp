#include "pool_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

namespace looseleaf {
namespace {

constexpr size_t huge_page = size_t(2) << 20;

size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

struct Mapping {
  void* start = MAP_FAILED;
  size_t length = 0;
  std::thread filler;
  std::atomic<bool> wanted{true};

  ~Mapping() {
    wanted = false;
    if (filler.joinable()) filler.join();
    if (start != MAP_FAILED) munmap(start, length);
  }
};

void check(bool succeeded, const char* call) {
  const int error = errno;
  STD_TORCH_CHECK(succeeded, "pool memory: ", call, " failed with errno ", error);
}

// Pages go to the given nodes in turns. A wish: containers may forbid the call, and then the first touch decides.
void interleave(void* data, size_t size, uint64_t nodes) {
#if defined(SYS_mbind)
  constexpr int policy_interleave = 3;
  const unsigned long mask = nodes;
  syscall(SYS_mbind, data, size, policy_interleave, &mask, 8 * sizeof mask + 1, 0);
#else
  (void)data, (void)size, (void)nodes;
#endif
}

// Threads take the pieces in turns, so that without `interleave`, too, neighbours lie on the nodes of all threads.
void touch(char* data, size_t size, size_t page) {
  const int64_t pieces = int64_t((size + huge_page - 1) / huge_page);
  const int64_t threads = std::clamp<int64_t>(torch::stable::get_num_threads(), 1, pieces);
  const auto work = [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      for (int64_t piece = thread; piece < pieces; piece += threads) {
        const size_t end = std::min(size, size_t(piece + 1) * huge_page);
        for (size_t at = size_t(piece) * huge_page; at < end; at += page) *static_cast<volatile char*>(data + at) = 0;
      }
    }
  };
  if (threads == 1) {
    work(0, 1);
  } else {
    torch::stable::parallel_for(0, threads, 1, work);
  }
}

// Where a part of the pool begins, rounded down to whole pages; the last one goes on to the end of the mapping.
struct Parts {
  size_t nbytes, count, page, size;

  size_t begin(size_t part) const { return part == count ? size : nbytes / count * part / page * page; }
};

// Makes the pages exist while others use them: an atomic exchange of 0 for 0 changes nothing, but is a write. (madvise
// could populate them, too, but holds a lock that every large allocation of the process then has to wait for.) The
// beginnings of all parts come first, then what follows them: there the first blocks of each layer lie.
void fill(const Mapping& mapping, char* data, const Parts& parts) {
  setpriority(PRIO_PROCESS, 0, 19);  // this thread's alone
  const size_t longest = parts.size - parts.begin(parts.count - 1) + 2 * parts.page;
  for (size_t first = 0; first < longest; first += huge_page) {
    for (size_t part = 0; part < parts.count; ++part) {
      const size_t begin = parts.begin(part) + first;
      const size_t end = std::min(begin + huge_page, parts.begin(part + 1));
      for (size_t at = begin; at < end; at += parts.page) {
        if (!mapping.wanted) return;
        char zero = 0;
        __atomic_compare_exchange_n(static_cast<volatile char*>(data + at), &zero, char(0), false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
      }
    }
  }
}

torch::stable::Tensor make_pool(int64_t nbytes, bool lock, int64_t numa_nodes, int64_t num_parts) {
  STD_TORCH_CHECK(nbytes > 0, "pool memory: the size must be positive, not ", nbytes);
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  const auto wanted = size_t(nbytes);
  // Whole huge pages, unless that would be most of it.
  const size_t size = rounded_up(wanted, wanted >= huge_page ? huge_page : page);

  auto mapping = std::make_unique<Mapping>();
  mapping->length = size + huge_page + 2 * page;
  mapping->start = mmap(nullptr, mapping->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(mapping->start != MAP_FAILED, "mmap");
  auto* data = reinterpret_cast<char*>(rounded_up(reinterpret_cast<size_t>(mapping->start) + page, huge_page));
  check(mprotect(data, size, PROT_READ | PROT_WRITE) == 0, "mprotect");
  madvise(data, size, MADV_HUGEPAGE);  // refused where the kernel has none: ordinary pages then
  if (numa_nodes != 0) interleave(data, size, uint64_t(numa_nodes));
  // Before the pages exist: a limit that is too low shows at once, and the threads below fault them in together.
  if (lock) check(mlock2(data, size, MLOCK_ONFAULT) == 0, "mlock");
  if (num_parts > 0) {
    const Parts parts{wanted, size_t(num_parts), page, size};
    // Ordinary pages at the beginnings: the first step touches all of them, and a huge page can take milliseconds.
    for (size_t part = 0; part < parts.count; ++part) {
      const size_t begin = parts.begin(part);
      madvise(data + begin, std::min(huge_page, size - begin), MADV_NOHUGEPAGE);
    }
    mapping->filler = std::thread([=, &mapping = *mapping] { fill(mapping, data, parts); });
  } else {
    touch(data, size, page);
  }

  const int64_t sizes[] = {nbytes}, strides[] = {1};
  // from_blob copies the deleter; it owns the mapping from here on.
  Mapping* owned = mapping.get();
  auto tensor = torch::stable::from_blob(data, {sizes, 1}, {strides, 1}, torch::headeronly::DeviceType::CPU,
                                         torch::headeronly::ScalarType::Byte, [owned](void*) { delete owned; });
  mapping.release();
  return tensor;
}

}  // namespace

torch::stable::Tensor allocate_pool(int64_t nbytes, bool lock, int64_t numa_nodes) {
  return make_pool(nbytes, lock, numa_nodes, 0);
}

torch::stable::Tensor reserve_pool(int64_t nbytes, int64_t numa_nodes, int64_t parts) {
  STD_TORCH_CHECK(parts > 0, "pool memory: the number of parts must be positive, not ", parts);
  return make_pool(nbytes, false, numa_nodes, parts);
}

}  // namespace looseleaf
