#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

namespace looseleaf {

// Zeroed memory of its own: uint8 [nbytes], aligned to 2 MiB, in huge pages where the system allows them, every page
// touched on torch's threads, between two guard pages (an access beyond either end is a fault, not another's data).
// Unmapped with the last tensor that uses it.
//   numa_nodes: a bit per node to spread the pages over in turns; 0: each page goes where it is first touched.
//   lock: keep it in physical memory.
// Throws with the failed call and its errno as "pool memory: CALL failed with errno N"; nothing stays mapped then.
torch::stable::Tensor allocate_pool(int64_t nbytes, bool lock, int64_t numa_nodes);

// The same, but it can be used at once: a thread of low priority makes its pages exist meanwhile, those at the beginnings
// of so many equal parts first.
torch::stable::Tensor reserve_pool(int64_t nbytes, int64_t numa_nodes, int64_t parts);

}  // namespace looseleaf
