#pragma once
#include <string>

namespace looseleaf {

// Comma-separated: the architecture, then the instruction sets that both the processor and the operating
// system offer, e.g. "x86_64,avx2,f16c,avx512,avx512_bf16". The last is "emulated" in a build for
// tests that runs the sets beyond AVX2 in software.
std::string cpu_features();

}  // namespace looseleaf
