// Every function of csrc/simd as a C function on memory, for test_simd.py. LOOSELEAF_SIMD names the header.
#include LOOSELEAF_SIMD
#include "simd/math.h"

using namespace looseleaf;

#define PROBE(name, ...)                                                                  \
  extern "C" void probe_##name([[maybe_unused]] const void* a, [[maybe_unused]] const void* b, \
                               [[maybe_unused]] const void* c, [[maybe_unused]] void* out) {   \
    __VA_ARGS__;                                                                          \
  }

static const float* f(const void* p) { return static_cast<const float*>(p); }
static const uint16_t* u16(const void* p) { return static_cast<const uint16_t*>(p); }
static const int8_t* i8(const void* p) { return static_cast<const int8_t*>(p); }
static const int32_t* i32(const void* p) { return static_cast<const int32_t*>(p); }
static void give(void* out, F16 x) { store(static_cast<float*>(out), x); }
static void give(void* out, I16 x) { store_int(static_cast<int32_t*>(out), x); }
static void give(void* out, float x) { *static_cast<float*>(out) = x; }
static void give(void* out, uint16_t x) { *static_cast<uint16_t*>(out) = x; }

PROBE(set1, give(out, set1(*f(a))))
PROBE(zero, give(out, zero()))
PROBE(add, give(out, load(f(a)) + load(f(b))))
PROBE(subtract, give(out, load(f(a)) - load(f(b))))
PROBE(multiply, give(out, load(f(a)) * load(f(b))))
PROBE(divide, give(out, load(f(a)) / load(f(b))))
PROBE(fma, give(out, fma(load(f(a)), load(f(b)), load(f(c)))))
PROBE(max, give(out, max(load(f(a)), load(f(b)))))
PROBE(min, give(out, min(load(f(a)), load(f(b)))))
PROBE(sum, give(out, sum(load(f(a)))))
PROBE(highest, give(out, highest(load(f(a)))))
PROBE(first_lanes, give(out, first_lanes(*i32(c), load(f(a)), load(f(b)))))
PROBE(zero_below, give(out, zero_below(load(f(a)), load(f(b)), load(f(c)))))
PROBE(round_even, give(out, round_even(load(f(a)))))
PROBE(scale_by_power, give(out, scale_by_power(load(f(a)), load(f(b)))))
PROBE(exp, give(out, exp(load(f(a)))))

PROBE(from_bf16, give(out, from_bf16(*u16(a))))
PROBE(load_bf16, give(out, load_bf16(u16(a))))
PROBE(store_bf16, store_bf16(static_cast<uint16_t*>(out), load(f(a))))
PROBE(load_bf16_pairs, F16 even; F16 odd; load_bf16_pairs(u16(a), even, odd); give(out, even);
      give(static_cast<float*>(out) + 16, odd))
PROBE(from_half, give(out, from_half(*u16(a))))
PROBE(to_half, give(out, to_half(*f(a))))
PROBE(load_half, give(out, load_half(u16(a))))

PROBE(store_int16, store_int16(static_cast<int16_t*>(out), load(f(a))))
PROBE(store_int8, store_int8(static_cast<int8_t*>(out), load(f(a))))
PROBE(zero_int, give(out, zero_int()))
PROBE(set1_int, give(out, set1_int(*i32(a))))
PROBE(add_int, give(out, load_int(i32(a)) + load_int(i32(b))))
PROBE(to_float, give(out, to_float(load_int(i32(a)))))
PROBE(dot_bytes, give(out, dot_pairs(load_int(i32(a)), i8(b), *i32(c))))
PROBE(dot_widened, give(out, dot_pairs(load_int(i32(a)), widen_pairs(i8(b)), *i32(c))))
PROBE(dot_nibbles0, give(out, dot_pairs(load_int(i32(a)), nibble_pairs<0>(u16(b)), *i32(c))))
PROBE(dot_nibbles1, give(out, dot_pairs(load_int(i32(a)), nibble_pairs<1>(u16(b)), *i32(c))))
PROBE(dot_nibbles2, give(out, dot_pairs(load_int(i32(a)), nibble_pairs<2>(u16(b)), *i32(c))))
PROBE(dot_nibbles3, give(out, dot_pairs(load_int(i32(a)), nibble_pairs<3>(u16(b)), *i32(c))))
