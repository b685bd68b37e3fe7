// The most likely token of each row: greedy sampling without a copy of the logits.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "../isa/isa.h"
#include "../parallel.h"
#include "step_checks.h"

namespace looseleaf {
namespace {

// best[i]: where row rows[i] of `logits` is largest, the first of equals, or its first NaN.
void argmax_rows(Tensor logits, Tensor rows, Tensor best) {
  using torch::headeronly::ScalarType;
  const float* data = float_data(logits, 2, "logits");
  for (const Tensor* ids : {&rows, &best}) {
    STD_TORCH_CHECK(ids->is_cpu() && ids->is_contiguous() && ids->dim() == 1 && ids->scalar_type() == ScalarType::Long,
                    "rows and best must be contiguous int64 vectors");
  }
  const int64_t num_rows = logits.size(0), size = logits.size(1), count = rows.numel();
  STD_TORCH_CHECK(best.numel() == count && size >= 1, "best must be as long as rows, and logits have a column");
  const auto* from = static_cast<const int64_t*>(rows.data_ptr());
  auto* to = static_cast<int64_t*>(best.data_ptr());
  for (int64_t i = 0; i < count; ++i)
    STD_TORCH_CHECK(from[i] >= 0 && from[i] < num_rows, "rows[", i, "] is ", from[i], " of ", num_rows);
  const auto argmax = kernels().step.argmax;
  parallel_items(count, [&](int64_t i, int64_t) { to[i] = argmax(data + from[i] * size, size); });
}

}  // namespace
}  // namespace looseleaf

STABLE_TORCH_LIBRARY_FRAGMENT(looseleaf, library) {
  library.def("argmax_rows(Tensor logits, Tensor rows, Tensor(a!) best) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("argmax_rows", TORCH_BOX(&looseleaf::argmax_rows));
}
