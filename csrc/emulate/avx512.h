// Put before isa/avx512.cpp by an emulating build: the intrinsics in plain C++ and AVX2, and the macros that tell the
// kernels that they are there.
#pragma once
#include "float.h"
#include "integer.h"

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
