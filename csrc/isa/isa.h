// Which instruction set the kernels use, and their entry points for each.
#pragma once
#include <string>

#include "../attention/attention_kernels.h"
#include "../linear/linear_kernels.h"
#include "../machine/machine_kernels.h"
#include "../step/step_kernels.h"

namespace looseleaf {

enum class Isa { portable, avx2, avx512, avx512_bf16, amx };

// The inner kernels of one instruction set: they run on the calling thread and check nothing.
struct KernelTable {
  AttentionKernels attention;
  LinearKernels linear;
  MachineKernels machine;
  StepKernels step;
};

// One per file of this folder; null where the compiler does not target x86-64.
extern const KernelTable portable_kernels;
extern const KernelTable* const avx2_kernels;
extern const KernelTable* const avx512_kernels;
extern const KernelTable* const avx512_bf16_kernels;
extern const KernelTable* const amx_kernels;

// The best that processor and operating system offer, or the one that select_isa named.
const KernelTable& kernels();
Isa selected_isa();

// "portable", "avx2", "avx512", "avx512_bf16", "amx": those that this machine can run, worst first, comma-separated.
std::string available_isas();
std::string isa_name();
// Throws for a name that is unknown or that this machine cannot run. Not while another thread computes.
void select_isa(std::string name);

}  // namespace looseleaf
