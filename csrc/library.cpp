// The operators that Python sees as torch.ops.looseleaf.*. Only torch's stable ABI is used.
#include <torch/csrc/stable/library.h>

#include "block_copy.h"
#include "cpu_features.h"

STABLE_TORCH_LIBRARY(looseleaf, library) {
  library.def("cpu_features() -> str");
  library.def("copy_blocks(Tensor(a!) cache, Tensor source, Tensor destination) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("cpu_features", TORCH_BOX(&looseleaf::cpu_features));
  library.impl("copy_blocks", TORCH_BOX(&looseleaf::copy_blocks));
}
