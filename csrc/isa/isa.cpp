#include "isa.h"

#include <torch/headeronly/util/Exception.h>

#include <array>
#include <atomic>

#include "../machine/cpu_features.h"

namespace looseleaf {
namespace {

constexpr std::array<const char*, 5> names = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
// What each needs beyond the one before it.
constexpr std::array<const char*, 5> needed = {"", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

const KernelTable* table(Isa isa) {
  switch (isa) {
    case Isa::avx2: return avx2_kernels;
    case Isa::avx512: return avx512_kernels;
    case Isa::avx512_bf16: return avx512_bf16_kernels;
    case Isa::amx: return amx_kernels;
    default: return &portable_kernels;
  }
}

bool has_feature(const std::string& features, const std::string& name) {
  return ("," + features + ",").find("," + name + ",") != std::string::npos;
}

int best_isa() {
  static const int best = [] {
    const std::string features = cpu_features();
    int isa = 0;
    while (isa + 1 < int(names.size()) && has_feature(features, needed[isa + 1]) && table(Isa(isa + 1))) ++isa;
    return isa;
  }();
  return best;
}

std::atomic<int>& current() {
  static std::atomic<int> isa{best_isa()};
  return isa;
}

}  // namespace

Isa selected_isa() { return Isa(current().load(std::memory_order_relaxed)); }

const KernelTable& kernels() { return *table(selected_isa()); }

std::string isa_name() { return names[size_t(selected_isa())]; }

std::string available_isas() {
  std::string all = names[0];
  for (int isa = 1; isa <= best_isa(); ++isa) all += std::string(",") + names[size_t(isa)];
  return all;
}

void select_isa(std::string name) {
  for (size_t isa = 0; isa < names.size(); ++isa) {
    if (name != names[isa]) continue;
    STD_TORCH_CHECK(int(isa) <= best_isa(), "this machine cannot run ", name, "; it has ", available_isas());
    current().store(int(isa));
    return;
  }
  STD_TORCH_CHECK(false, "there is no instruction set '", name, "'; this machine has ", available_isas());
}

}  // namespace looseleaf
