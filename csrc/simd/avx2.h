// Sixteen lanes as two AVX2 registers. The meaning of each function is in portable.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace looseleaf {
namespace {

struct F16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};

inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

inline float from_bf16(uint16_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int32_t(uint32_t(bits) << 16))));
}
inline F16 load_bf16(const uint16_t* p) {
  const auto widen = [](const uint16_t* q) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  };
  return {widen(p), widen(p + 8)};
}
inline __m256i rounded_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, _mm256_castps_si256(nan)), 16);
}
inline void store_bf16(uint16_t* p, F16 x) {
  const __m256i packed = _mm256_packus_epi32(rounded_bf16(x.a), rounded_bf16(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline F16 load_bf16_even(const uint16_t* p) {
  const auto half = [](const uint16_t* q) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), 16));
  };
  return {half(p), half(p + 16)};
}
inline F16 load_bf16_odd(const uint16_t* p) {
  const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000u));
  const auto half = [&](const uint16_t* q) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), upper));
  };
  return {half(p), half(p + 16)};
}
inline void load_bf16_pairs(const uint16_t* p, F16& even, F16& odd) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
}

inline float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 r = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  r = _mm_add_ps(r, _mm_movehl_ps(r, r));
  return _mm_cvtss_f32(_mm_add_ss(r, _mm_movehdup_ps(r)));
}
inline float highest(F16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 r = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  r = _mm_max_ps(r, _mm_movehl_ps(r, r));
  return _mm_cvtss_f32(_mm_max_ss(r, _mm_movehdup_ps(r)));
}
inline F16 first_lanes(int count, F16 x, F16 y) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const auto chosen = [&](int n) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index)); };
  return {_mm256_blendv_ps(y.a, x.a, chosen(count)), _mm256_blendv_ps(y.b, x.b, chosen(count - 8))};
}
inline F16 zero_below(F16 x, F16 limit, F16 y) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ), y.a),
          _mm256_andnot_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ), y.b)};
}
inline F16 round_even(F16 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline F16 scale_by_power(F16 x, F16 n) {
  const auto power = [](__m256 e) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(e), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  };
  return {_mm256_mul_ps(x.a, power(n.a)), _mm256_mul_ps(x.b, power(n.b))};
}

inline float from_half(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t to_half(float x) { return uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
inline F16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline __m256i packed_int16(F16 x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  return _mm256_permute4x64_epi64(words, 0xd8);
}
inline void store_int16(int16_t* p, F16 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed_int16(x)); }
inline void store_int8(int8_t* p, F16 x) {
  const __m256i words = packed_int16(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

struct Pairs {
  __m256i a, b;
};
inline Pairs widen_pairs(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
template <int which>
inline Pairs nibble_pairs(const uint16_t* p) {
  const auto nibble = [](const uint16_t* q) {
    const __m256i shifted = _mm256_srli_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), 4 * which);
    return which == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
  };
  return {nibble(p), nibble(p + 16)};
}
inline I16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 dot_pairs(I16 acc, Pairs p, int32_t pair) {
  const __m256i x = _mm256_set1_epi32(pair);
  I16 r = {_mm256_add_epi32(acc.a, _mm256_madd_epi16(p.a, x)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(p.b, x))};
#if defined(__GNUC__)
  // Integer sums may be taken in any order, and GCC adds the products up first, in more registers than there are.
  __asm__("" : "+x"(r.a), "+x"(r.b));
#endif
  return r;
}
inline I16 zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I16 load_int(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store_int(int32_t* p, I16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline I16 operator+(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I16 dot_pairs(I16 acc, const int8_t* p, int32_t pair) {
  const __m256i x = _mm256_set1_epi32(pair);
  const auto widen = [](const int8_t* q) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  };
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(widen(p), x)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(widen(p + 16), x))};
}

}  // namespace
}  // namespace looseleaf
