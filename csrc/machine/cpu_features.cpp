#include "cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace looseleaf {

#if defined(LOOSELEAF_EMULATED)
std::string cpu_features() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "x86_64,emulated";
  return "x86_64,avx2,f16c,avx512,avx512_vnni,avx512_bf16,amx_bf16,amx_int8,emulated";
}
#elif defined(__x86_64__)
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

bool bit(uint32_t word, int index) { return (word >> index) & 1u; }

// Which register files the operating system saves on a context switch (XCR0): an instruction set that the
// processor has but the kernel does not save must not be used.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

// Linux hands out the 8 KiB of AMX tile registers only to processes that ask.
bool request_amx_permission() {
  constexpr int arch_request_xcomp_permission = 0x1023;
  constexpr int tile_data_component = 18;
  return syscall(SYS_arch_prctl, arch_request_xcomp_permission, tile_data_component) == 0;
}

}  // namespace

std::string cpu_features() {
  const Registers base = cpuid(1, 0);
  std::string found = "x86_64";
  if (!bit(base.ecx, 27)) return found;  // OSXSAVE

  const uint64_t saved = saved_state();
  const bool ymm = (saved & 0x6) == 0x6;
  const bool zmm = (saved & 0xe6) == 0xe6;
  const bool tiles = (saved & 0x60000) == 0x60000;
  const Registers ext = cpuid(7, 0);
  const Registers ext1 = cpuid(7, 1);

  const auto add = [&](bool present, const char* name) {
    if (present) found += std::string(",") + name;
  };
  const bool avx2 = ymm && bit(ext.ebx, 5) && bit(base.ecx, 12);
  const bool avx512 = zmm && bit(ext.ebx, 16) && bit(ext.ebx, 17) && bit(ext.ebx, 30) && bit(ext.ebx, 31);
  add(avx2, "avx2");
  add(avx2 && bit(base.ecx, 29), "f16c");
  add(avx512, "avx512");
  add(avx512 && bit(ext.ecx, 11), "avx512_vnni");
  add(avx512 && bit(ext1.eax, 5), "avx512_bf16");
  const bool amx = avx512 && tiles && bit(ext.edx, 24) && bit(ext.edx, 22) && request_amx_permission();
  add(amx, "amx_bf16");
  add(amx && bit(ext.edx, 25), "amx_int8");
  return found;
}

#elif defined(__aarch64__)
std::string cpu_features() { return "aarch64"; }
#else
std::string cpu_features() { return "generic"; }
#endif

}  // namespace looseleaf
