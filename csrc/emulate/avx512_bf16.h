// Put before isa/avx512_bf16.cpp by an emulating build.
#pragma once
#include "avx512.h"
#include "bfloat16.h"

#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
