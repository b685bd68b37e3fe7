// Emulated AVX-512 (F, BW, DQ, VL, VNNI): integers of 8 to 64 bits.
#pragma once
#include "memory.h"

#undef _mm512_setr_epi32
#undef _mm512_setr_epi64
#undef _mm256_dpwssd_epi32
#undef _mm256_dpbusd_epi32
#undef _mm512_slli_epi16
#undef _mm512_srli_epi16
#undef _mm512_srai_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_srai_epi32
#undef _mm512_slli_epi64
#undef _mm512_srli_epi64
#undef _mm512_shuffle_epi32
#undef _mm512_shuffle_i32x4
#undef _mm512_shuffle_i64x2
#undef _mm512_permutex_epi64
#undef _mm512_ternarylogic_epi32

namespace looseleaf {
namespace {

inline __m512i _mm512_set1_epi8(int x) { return emulate::repeat<__m512i>(int8_t(x)); }
inline __m512i _mm512_set1_epi16(int x) { return emulate::repeat<__m512i>(int16_t(x)); }
inline __m512i _mm512_set1_epi32(int x) { return emulate::repeat<__m512i>(int32_t(x)); }
inline __m512i _mm512_set1_epi64(int64_t x) { return emulate::repeat<__m512i>(x); }
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512i _mm512_undefined_epi32() { return _mm512_set1_epi32(0x7fc00001); }
template <class... X>
inline __m512i _mm512_setr_epi32(X... x) {
  static_assert(sizeof...(X) == 16);
  const int32_t lanes[16] = {int32_t(x)...};
  return emulate::read<__m512i>(lanes);
}
template <class... X>
inline __m512i _mm512_set_epi32(X... x) {
  static_assert(sizeof...(X) == 16);
  const int32_t lanes[16] = {int32_t(x)...};
  return emulate::fill<int32_t, __m512i>([&](int i) LOOSELEAF_ALWAYS { return lanes[15 - i]; });
}
template <class... X>
inline __m512i _mm512_setr_epi64(X... x) {
  static_assert(sizeof...(X) == 8);
  return __m512i{int64_t(x)...};
}

// Sums and products wrap around: the lanes are unsigned for them.
LOOSELEAF_BINARY(uint8_t, __m512i, add_epi8, x + y)
LOOSELEAF_BINARY(uint16_t, __m512i, add_epi16, x + y)
LOOSELEAF_BINARY(uint32_t, __m512i, add_epi32, x + y)
LOOSELEAF_BINARY(uint64_t, __m512i, add_epi64, x + y)
LOOSELEAF_BINARY(uint8_t, __m512i, sub_epi8, x - y)
LOOSELEAF_BINARY(uint16_t, __m512i, sub_epi16, x - y)
LOOSELEAF_BINARY(uint32_t, __m512i, sub_epi32, x - y)
LOOSELEAF_BINARY(uint16_t, __m512i, mullo_epi16, uint32_t(x) * y)
LOOSELEAF_BINARY(uint32_t, __m512i, mullo_epi32, x * y)
LOOSELEAF_BINARY(int16_t, __m512i, mulhi_epi16, int32_t(x) * y >> 16)
LOOSELEAF_BINARY(int16_t, __m512i, mulhrs_epi16, ((int32_t(x) * y >> 14) + 1) >> 1)
LOOSELEAF_BINARY(int32_t, __m512i, and_epi32, x & y)
LOOSELEAF_BINARY(int32_t, __m512i, or_epi32, x | y)
LOOSELEAF_BINARY(int32_t, __m512i, xor_epi32, x ^ y)
LOOSELEAF_BINARY(int32_t, __m512i, andnot_epi32, ~x & y)
LOOSELEAF_BINARY(int8_t, __m512i, max_epi8, x > y ? x : y)
LOOSELEAF_BINARY(int16_t, __m512i, max_epi16, x > y ? x : y)
LOOSELEAF_BINARY(int32_t, __m512i, max_epi32, x > y ? x : y)
LOOSELEAF_BINARY(int8_t, __m512i, min_epi8, x < y ? x : y)
LOOSELEAF_BINARY(int16_t, __m512i, min_epi16, x < y ? x : y)
LOOSELEAF_BINARY(int32_t, __m512i, min_epi32, x < y ? x : y)
LOOSELEAF_BINARY(uint32_t, __m512i, sllv_epi32, y > 31 ? 0 : x << y)
LOOSELEAF_BINARY(uint32_t, __m512i, srlv_epi32, y > 31 ? 0 : x >> y)
LOOSELEAF_BINARY(int32_t, __m512i, srav_epi32, x >> (uint32_t(y) > 31 ? 31 : y))
LOOSELEAF_UNARY(int8_t, __m512i, abs_epi8, x < 0 ? -x : x)
LOOSELEAF_UNARY(int16_t, __m512i, abs_epi16, x < 0 ? -x : x)
LOOSELEAF_UNARY(int32_t, __m512i, abs_epi32, int32_t(x < 0 ? 0u - uint32_t(x) : uint32_t(x)))
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
inline __m512i _mm512_andnot_si512(__m512i a, __m512i b) { return ~a & b; }
inline __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  __m512i r{};
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}

#define LOOSELEAF_SHIFT(E, bits, name, expression, too_far)                                                            \
  inline __m512i _mm512_##name(__m512i a, unsigned n) {                                                                \
    return emulate::map<E>(a, [=](E x) LOOSELEAF_ALWAYS { return n < bits ? E(expression) : E(too_far); });                                      \
  }                                                                                                                    \
  inline __m512i _mm512_maskz_##name(uint64_t k, __m512i a, unsigned n) {                                              \
    return emulate::select<E>(k, _mm512_##name(a, n), __m512i{});                                                               \
  }
LOOSELEAF_SHIFT(uint16_t, 16, slli_epi16, x << n, 0)
LOOSELEAF_SHIFT(uint16_t, 16, srli_epi16, x >> n, 0)
LOOSELEAF_SHIFT(int16_t, 16, srai_epi16, x >> n, x >> 15)
LOOSELEAF_SHIFT(uint32_t, 32, slli_epi32, x << n, 0)
LOOSELEAF_SHIFT(uint32_t, 32, srli_epi32, x >> n, 0)
LOOSELEAF_SHIFT(int32_t, 32, srai_epi32, x >> n, x >> 31)
LOOSELEAF_SHIFT(uint64_t, 64, slli_epi64, x << n, 0)
LOOSELEAF_SHIFT(uint64_t, 64, srli_epi64, x >> n, 0)
#undef LOOSELEAF_SHIFT

// Both halves by the AVX2 instruction, which never crosses a quarter.
#define LOOSELEAF_HALVES(name)                                                                                         \
  inline __m512i _mm512_##name(__m512i a, __m512i b) {                                                                 \
    return emulate::with_part(emulate::recast<__m512i>(_mm256_##name(emulate::part<__m256i>(a, 0), emulate::part<__m256i>(b, 0))),                         \
                     _mm256_##name(emulate::part<__m256i>(a, 1), emulate::part<__m256i>(b, 1)), 1);                                      \
  }
LOOSELEAF_HALVES(madd_epi16)
LOOSELEAF_HALVES(maddubs_epi16)
LOOSELEAF_HALVES(adds_epi16)
LOOSELEAF_HALVES(adds_epi8)
LOOSELEAF_HALVES(subs_epi16)
LOOSELEAF_HALVES(subs_epi8)
LOOSELEAF_HALVES(packs_epi16)
LOOSELEAF_HALVES(packs_epi32)
LOOSELEAF_HALVES(packus_epi16)
LOOSELEAF_HALVES(packus_epi32)
LOOSELEAF_HALVES(unpacklo_epi8)
LOOSELEAF_HALVES(unpackhi_epi8)
LOOSELEAF_HALVES(unpacklo_epi16)
LOOSELEAF_HALVES(unpackhi_epi16)
LOOSELEAF_HALVES(unpacklo_epi32)
LOOSELEAF_HALVES(unpackhi_epi32)
LOOSELEAF_HALVES(unpacklo_epi64)
LOOSELEAF_HALVES(unpackhi_epi64)
LOOSELEAF_HALVES(shuffle_epi8)
#undef LOOSELEAF_HALVES

namespace emulate {
// VNNI: pairs of int16, or quadruples of uint8 · int8, added to 32 bits that wrap around.
template <class A, class B, class V>
inline V dot_into(V acc, V a, V b) {
  constexpr int group = 4 / sizeof(A);
  const Lanes<uint32_t, V> c(acc);
  const Lanes<A, V> x(a);
  const Lanes<B, V> y(b);
  return fill<uint32_t, V>([&](int i) LOOSELEAF_ALWAYS {
    uint32_t total = c.lane[i];
    for (int j = 0; j < group; ++j) total += uint32_t(int32_t(x.lane[group * i + j]) * int32_t(y.lane[group * i + j]));
    return total;
  });
}
}  // namespace emulate

inline __m512i _mm512_dpwssd_epi32(__m512i acc, __m512i a, __m512i b) { return emulate::dot_into<int16_t, int16_t>(acc, a, b); }
inline __m512i _mm512_dpbusd_epi32(__m512i acc, __m512i a, __m512i b) { return emulate::dot_into<uint8_t, int8_t>(acc, a, b); }
inline __m256i _mm256_dpwssd_epi32(__m256i acc, __m256i a, __m256i b) { return emulate::dot_into<int16_t, int16_t>(acc, a, b); }
inline __m256i _mm256_dpbusd_epi32(__m256i acc, __m256i a, __m256i b) { return emulate::dot_into<uint8_t, int8_t>(acc, a, b); }

inline __m512i _mm512_cvtepi8_epi16(__m256i a) { return emulate::convert<int8_t, int16_t, __m512i>(a); }
inline __m512i _mm512_cvtepu8_epi16(__m256i a) { return emulate::convert<uint8_t, int16_t, __m512i>(a); }
inline __m512i _mm512_cvtepi8_epi32(__m128i a) { return emulate::convert<int8_t, int32_t, __m512i>(a); }
inline __m512i _mm512_cvtepu8_epi32(__m128i a) { return emulate::convert<uint8_t, int32_t, __m512i>(a); }
inline __m512i _mm512_cvtepi16_epi32(__m256i a) { return emulate::convert<int16_t, int32_t, __m512i>(a); }
inline __m512i _mm512_cvtepu16_epi32(__m256i a) { return emulate::convert<uint16_t, int32_t, __m512i>(a); }
inline __m256i _mm512_cvtepi32_epi16(__m512i a) { return emulate::convert<int32_t, int16_t, __m256i>(a); }
inline __m128i _mm512_cvtepi32_epi8(__m512i a) { return emulate::convert<int32_t, int8_t, __m128i>(a); }
inline __m256i _mm512_cvtepi16_epi8(__m512i a) { return emulate::convert<int16_t, int8_t, __m256i>(a); }
inline __m128i _mm256_cvtepi32_epi16(__m256i a) { return emulate::convert<int32_t, int16_t, __m128i>(a); }
inline __m128i _mm256_cvtepi16_epi8(__m256i a) { return emulate::convert<int16_t, int8_t, __m128i>(a); }
inline __m256i _mm512_cvtsepi32_epi16(__m512i a) { return emulate::saturate<int32_t, int16_t, __m256i>(a, -32768, 32767); }
inline __m128i _mm512_cvtsepi32_epi8(__m512i a) { return emulate::saturate<int32_t, int8_t, __m128i>(a, -128, 127); }
inline __m256i _mm512_cvtsepi16_epi8(__m512i a) { return emulate::saturate<int16_t, int8_t, __m256i>(a, -128, 127); }
inline __m128i _mm256_cvtsepi16_epi8(__m256i a) { return emulate::saturate<int16_t, int8_t, __m128i>(a, -128, 127); }

#define LOOSELEAF_COMPARE(E, name, expression)                                                                         \
  inline uint64_t _mm512_##name##_mask(__m512i a, __m512i b) {                                                         \
    return emulate::mask_of<E>(a, b, [](E x, E y) LOOSELEAF_ALWAYS { return expression; });                                                      \
  }
LOOSELEAF_COMPARE(int32_t, cmpeq_epi32, x == y)
LOOSELEAF_COMPARE(int32_t, cmpneq_epi32, x != y)
LOOSELEAF_COMPARE(int32_t, cmplt_epi32, x < y)
LOOSELEAF_COMPARE(int32_t, cmple_epi32, x <= y)
LOOSELEAF_COMPARE(int32_t, cmpgt_epi32, x > y)
LOOSELEAF_COMPARE(int32_t, cmpge_epi32, x >= y)
LOOSELEAF_COMPARE(uint32_t, cmplt_epu32, x < y)
LOOSELEAF_COMPARE(int32_t, test_epi32, (x & y) != 0)
LOOSELEAF_COMPARE(int16_t, cmpeq_epi16, x == y)
LOOSELEAF_COMPARE(int16_t, cmpgt_epi16, x > y)
LOOSELEAF_COMPARE(int16_t, cmplt_epi16, x < y)
LOOSELEAF_COMPARE(int8_t, cmpeq_epi8, x == y)
LOOSELEAF_COMPARE(int8_t, cmpgt_epi8, x > y)
LOOSELEAF_COMPARE(int8_t, cmplt_epi8, x < y)
#undef LOOSELEAF_COMPARE

#define LOOSELEAF_CHOICE(E, type)                                                                                      \
  inline __m512i _mm512_mask_blend_##type(uint64_t k, __m512i a, __m512i b) { return emulate::select<E>(k, b, a); }             \
  inline __m512i _mm512_mask_mov_##type(__m512i src, uint64_t k, __m512i a) { return emulate::select<E>(k, a, src); }           \
  inline __m512i _mm512_maskz_mov_##type(uint64_t k, __m512i a) { return emulate::select<E>(k, a, __m512i{}); }
LOOSELEAF_CHOICE(int32_t, epi32)
LOOSELEAF_CHOICE(int16_t, epi16)
LOOSELEAF_CHOICE(int8_t, epi8)
#undef LOOSELEAF_CHOICE

#define LOOSELEAF_PERMUTE(E, type)                                                                                     \
  inline __m512i _mm512_permutexvar_##type(__m512i index, __m512i a) {                                                 \
    const emulate::Lanes<E, __m512i> at(index), x(a);                                                                           \
    return emulate::fill<E, __m512i>([&](int i) LOOSELEAF_ALWAYS { return x.lane[at.lane[i] & (x.count - 1)]; });                                \
  }                                                                                                                    \
  inline __m512i _mm512_permutex2var_##type(__m512i a, __m512i index, __m512i b) {                                     \
    const emulate::Lanes<E, __m512i> at(index), x(a), y(b);                                                                     \
    return emulate::fill<E, __m512i>([&](int i) LOOSELEAF_ALWAYS { return (at.lane[i] & x.count ? y : x).lane[at.lane[i] & (x.count - 1)]; });   \
  }
LOOSELEAF_PERMUTE(uint64_t, epi64)
LOOSELEAF_PERMUTE(uint32_t, epi32)
LOOSELEAF_PERMUTE(uint16_t, epi16)
#undef LOOSELEAF_PERMUTE
inline __m512i _mm512_shuffle_epi32(__m512i a, int mode) {
  const emulate::Lanes<int32_t, __m512i> x(a);
  return emulate::fill<int32_t, __m512i>([&](int i) LOOSELEAF_ALWAYS { return x.lane[(i & ~3) | (mode >> (i & 3) * 2 & 3)]; });
}
inline __m512i _mm512_permutex_epi64(__m512i a, int mode) {
  const emulate::Lanes<int64_t, __m512i> x(a);
  return emulate::fill<int64_t, __m512i>([&](int i) LOOSELEAF_ALWAYS { return x.lane[(i & ~3) | (mode >> (i & 3) * 2 & 3)]; });
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int mode) {
  __m512i r{};
  for (int i = 0; i < 4; ++i) r = emulate::with_part(r, emulate::part<__m128i>(i < 2 ? a : b, mode >> i * 2 & 3), i);
  return r;
}
inline __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int mode) { return _mm512_shuffle_i32x4(a, b, mode); }

inline int _mm512_reduce_add_epi32(__m512i a) {
  uint32_t total = 0;
  for (int i = 0; i < 16; ++i) total += emulate::part<uint32_t>(a, i);
  return int(total);
}
inline int _mm512_reduce_max_epi32(__m512i a) {
  int highest = emulate::part<int>(a, 0);
  for (int i = 1; i < 16; ++i) highest = emulate::part<int>(a, i) > highest ? emulate::part<int>(a, i) : highest;
  return highest;
}

}  // namespace
}  // namespace looseleaf
