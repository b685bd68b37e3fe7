// Sixteen lanes as one AVX-512 register (F, BW, DQ, VL). The meaning of each function is in portable.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace looseleaf {
namespace {

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};

inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline F16 operator+(F16 x, F16 y) { return {_mm512_add_ps(x.v, y.v)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm512_div_ps(x.v, y.v)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline F16 max(F16 x, F16 y) { return {_mm512_max_ps(x.v, y.v)}; }
inline F16 min(F16 x, F16 y) { return {_mm512_min_ps(x.v, y.v)}; }

inline float from_bf16(uint16_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int32_t(uint32_t(bits) << 16))));
}
inline F16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_bf16(uint16_t* p, F16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
inline F16 load_bf16_even(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline F16 load_bf16_odd(const uint16_t* p) {
  const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper))};
}
inline void load_bf16_pairs(const uint16_t* p, F16& even, F16& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int32_t(0xffff0000u))))};
}

inline float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 r = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  r = _mm_add_ps(r, _mm_movehl_ps(r, r));
  return _mm_cvtss_f32(_mm_add_ss(r, _mm_movehdup_ps(r)));
}
inline float highest(F16 x) { return _mm512_reduce_max_ps(x.v); }
inline F16 first_lanes(int count, F16 x, F16 y) {
  const uint32_t chosen = count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1u;
  return {_mm512_mask_blend_ps(__mmask16(chosen), y.v, x.v)};
}
inline F16 zero_below(F16 x, F16 limit, F16 y) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), y.v)};
}
inline F16 round_even(F16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F16 scale_by_power(F16 x, F16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_mul_ps(x.v, _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23)))};
}

inline float from_half(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t to_half(float x) { return uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
inline F16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_int16(int16_t* p, F16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v)));
}
inline void store_int8(int8_t* p, F16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

struct Pairs {
  __m512i v;
};
inline Pairs widen_pairs(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <int which>
inline Pairs nibble_pairs(const uint16_t* p) {
  const __m512i shifted = _mm512_srli_epi16(_mm512_loadu_si512(p), 4 * which);
  return {which == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15))};
}
inline I16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 dot_pairs(I16 acc, Pairs p, int32_t pair) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpwssd_epi32(acc.v, p.v, _mm512_set1_epi32(pair))};
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(p.v, _mm512_set1_epi32(pair)))};
#endif
}
inline I16 zero_int() { return {_mm512_setzero_si512()}; }
inline I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_int(int32_t* p, I16 x) { _mm512_storeu_si512(p, x.v); }
inline I16 operator+(I16 x, I16 y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline I16 dot_pairs(I16 acc, const int8_t* p, int32_t pair) {
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#if defined(__AVX512VNNI__)
  return {_mm512_dpwssd_epi32(acc.v, wide, _mm512_set1_epi32(pair))};
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(wide, _mm512_set1_epi32(pair)))};
#endif
}

}  // namespace
}  // namespace looseleaf
