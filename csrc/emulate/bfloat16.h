// Emulated AVX512-BF16. Inputs and results that are denormal count as zero, and every product is added with one
// rounding to nearest even, the odd number of a pair first (Intel's manual, VDPBF16PS).
#pragma once
#include "float.h"
#include "integer.h"

namespace looseleaf {
namespace {

namespace emulate {
inline __m256 flushed(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)), _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_srli_epi32(tiny, 1), bits));  // the sign stays
}
inline __m256 even_bf16(__m256i pairs) { return flushed(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))); }
inline __m256 odd_bf16(__m256i pairs) {
  return flushed(_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int32_t(0xffff0000u)))));
}
}  // namespace emulate

inline __m256 _mm256_dpbf16_ps(__m256 acc, __m256bh a, __m256bh b) {
  const __m256i x = emulate::recast<__m256i>(a), y = emulate::recast<__m256i>(b);
  const __m256 r = emulate::flushed(_mm256_fmadd_ps(emulate::odd_bf16(x), emulate::odd_bf16(y), emulate::flushed(acc)));
  return emulate::flushed(_mm256_fmadd_ps(emulate::even_bf16(x), emulate::even_bf16(y), r));
}
inline __m512 _mm512_dpbf16_ps(__m512 acc, __m512bh a, __m512bh b) {
  __m512 r{};
  for (int i = 0; i < 2; ++i)
    r = emulate::with_part(r, _mm256_dpbf16_ps(emulate::part<__m256>(acc, i), emulate::part<__m256bh>(a, i), emulate::part<__m256bh>(b, i)), i);
  return r;
}
inline __m512 _mm512_mask_dpbf16_ps(__m512 acc, uint64_t k, __m512bh a, __m512bh b) {
  return emulate::select<float>(k, _mm512_dpbf16_ps(acc, a, b), acc);
}
inline __m512 _mm512_maskz_dpbf16_ps(uint64_t k, __m512 acc, __m512bh a, __m512bh b) {
  return emulate::select<float>(k, _mm512_dpbf16_ps(acc, a, b), __m512{});
}

namespace emulate {
inline uint16_t nearest_bf16(float x) {
  const uint32_t bits = read<uint32_t>(&x);
  if (x != x) return uint16_t((bits >> 16) | 0x40u);
  if ((bits & 0x7f800000u) == 0) return uint16_t(bits >> 16 & 0x8000u);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
}  // namespace emulate

inline __m256bh _mm512_cvtneps_pbh(__m512 a) {
  const emulate::Lanes<float, __m512> x(a);
  return emulate::fill<uint16_t, __m256bh>([&](int i) { return emulate::nearest_bf16(x.lane[i]); });
}
inline __m128bh _mm256_cvtneps_pbh(__m256 a) {
  const emulate::Lanes<float, __m256> x(a);
  return emulate::fill<uint16_t, __m128bh>([&](int i) { return emulate::nearest_bf16(x.lane[i]); });
}
// b to the lower half.
inline __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b) {
  return emulate::with_part(emulate::recast<__m512bh>(_mm512_cvtneps_pbh(b)), _mm512_cvtneps_pbh(a), 1);
}
inline __m512 _mm512_cvtpbh_ps(__m256bh a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(emulate::recast<__m256i>(a)), 16));
}

}  // namespace
}  // namespace looseleaf
