// Opens the namespace torch.ops.looseleaf; larger folders register their own operators. Only torch's stable ABI is used.
#include <torch/csrc/stable/library.h>

#include "isa/isa.h"
#include "machine/cpu_features.h"
#include "machine/read_memory.h"
#include "memory/block_copy.h"
#include "memory/pool_memory.h"

STABLE_TORCH_LIBRARY(looseleaf, library) {
  library.def("cpu_features() -> str");
  library.def("available_isas() -> str");
  library.def("isa_name() -> str");
  library.def("select_isa(str name) -> ()");
  library.def("build_info() -> str");
  library.def("read_memory(Tensor data) -> int");
  library.def("allocate_pool(int nbytes, bool lock, int numa_nodes) -> Tensor");
  library.def("reserve_pool(int nbytes, int numa_nodes, int parts) -> Tensor");
  library.def("copy_blocks(Tensor(a!) cache, Tensor source, Tensor destination) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("cpu_features", TORCH_BOX(&looseleaf::cpu_features));
  library.impl("available_isas", TORCH_BOX(&looseleaf::available_isas));
  library.impl("isa_name", TORCH_BOX(&looseleaf::isa_name));
  library.impl("select_isa", TORCH_BOX(&looseleaf::select_isa));
  library.impl("build_info", TORCH_BOX(&looseleaf::build_info));
  library.impl("read_memory", TORCH_BOX(&looseleaf::read_memory));
  library.impl("allocate_pool", TORCH_BOX(&looseleaf::allocate_pool));
  library.impl("reserve_pool", TORCH_BOX(&looseleaf::reserve_pool));
  library.impl("copy_blocks", TORCH_BOX(&looseleaf::copy_blocks));
}
