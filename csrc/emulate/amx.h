// Put before isa/amx.cpp by an emulating build.
#pragma once
#include "avx512_bf16.h"
#include "tiles.h"

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
