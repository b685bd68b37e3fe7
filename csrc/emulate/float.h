// Emulated AVX-512: sixteen floats.
#pragma once
#include "memory.h"

#undef _mm512_setr_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_mask_cmp_ps_mask
#undef _mm256_cmp_ps_mask
#undef _mm512_roundscale_ps
#undef _mm512_cvtps_ph
#undef _mm512_permute_ps
#undef _mm512_shuffle_ps
#undef _mm512_shuffle_f32x4

namespace looseleaf {
namespace {

inline __m512 _mm512_set1_ps(float x) { return emulate::repeat<__m512>(x); }
inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512 _mm512_setzero() { return __m512{}; }
inline __m512 _mm512_undefined_ps() { return _mm512_set1_ps(__builtin_nanf("")); }
template <class... X>
inline __m512 _mm512_setr_ps(X... x) {
  static_assert(sizeof...(X) == 16);
  return __m512{float(x)...};
}

// Both halves by the AVX2 instruction of the same name.
#define LOOSELEAF_HALVES(name, parameters, low, high)                                                                  \
  inline __m512 _mm512_##name parameters { return _mm512_insertf32x8(emulate::recast<__m512>(low), high, 1); }
#define LOOSELEAF_FLOAT2(name)                                                                                         \
  LOOSELEAF_HALVES(name, (__m512 a, __m512 b), _mm256_##name(emulate::part<__m256>(a, 0), emulate::part<__m256>(b, 0)),                  \
                   _mm256_##name(emulate::part<__m256>(a, 1), emulate::part<__m256>(b, 1)))                                              \
  inline __m512 _mm512_mask_##name(__m512 src, uint64_t k, __m512 a, __m512 b) {                                       \
    return emulate::select<float>(k, _mm512_##name(a, b), src);                                                                 \
  }                                                                                                                    \
  inline __m512 _mm512_maskz_##name(uint64_t k, __m512 a, __m512 b) {                                                  \
    return emulate::select<float>(k, _mm512_##name(a, b), __m512{});                                                            \
  }
#define LOOSELEAF_FLOAT3(name)                                                                                         \
  LOOSELEAF_HALVES(name, (__m512 a, __m512 b, __m512 c),                                                               \
                   _mm256_##name(emulate::part<__m256>(a, 0), emulate::part<__m256>(b, 0), emulate::part<__m256>(c, 0)),                          \
                   _mm256_##name(emulate::part<__m256>(a, 1), emulate::part<__m256>(b, 1), emulate::part<__m256>(c, 1)))                          \
  inline __m512 _mm512_mask_##name(__m512 a, uint64_t k, __m512 b, __m512 c) {                                         \
    return emulate::select<float>(k, _mm512_##name(a, b, c), a);                                                                \
  }                                                                                                                    \
  inline __m512 _mm512_mask3_##name(__m512 a, __m512 b, __m512 c, uint64_t k) {                                        \
    return emulate::select<float>(k, _mm512_##name(a, b, c), c);                                                                \
  }                                                                                                                    \
  inline __m512 _mm512_maskz_##name(uint64_t k, __m512 a, __m512 b, __m512 c) {                                        \
    return emulate::select<float>(k, _mm512_##name(a, b, c), __m512{});                                                         \
  }
LOOSELEAF_FLOAT2(add_ps)
LOOSELEAF_FLOAT2(sub_ps)
LOOSELEAF_FLOAT2(mul_ps)
LOOSELEAF_FLOAT2(div_ps)
LOOSELEAF_FLOAT2(min_ps)
LOOSELEAF_FLOAT2(max_ps)
LOOSELEAF_FLOAT2(and_ps)
LOOSELEAF_FLOAT2(or_ps)
LOOSELEAF_FLOAT2(xor_ps)
LOOSELEAF_FLOAT2(andnot_ps)
LOOSELEAF_FLOAT2(unpacklo_ps)
LOOSELEAF_FLOAT2(unpackhi_ps)
LOOSELEAF_FLOAT3(fmadd_ps)
LOOSELEAF_FLOAT3(fmsub_ps)
LOOSELEAF_FLOAT3(fnmadd_ps)
LOOSELEAF_FLOAT3(fnmsub_ps)
LOOSELEAF_UNARY(float, __m512, sqrt_ps, __builtin_sqrtf(x))
LOOSELEAF_UNARY(float, __m512, abs_ps, __builtin_fabsf(x))
#undef LOOSELEAF_HALVES
#undef LOOSELEAF_FLOAT2
#undef LOOSELEAF_FLOAT3

inline __m512 _mm512_mask_blend_ps(uint64_t k, __m512 a, __m512 b) { return emulate::select<float>(k, b, a); }
inline __m512 _mm512_mask_mov_ps(__m512 src, uint64_t k, __m512 a) { return emulate::select<float>(k, a, src); }
inline __m512 _mm512_maskz_mov_ps(uint64_t k, __m512 a) { return emulate::select<float>(k, a, __m512{}); }

namespace emulate {
// The five low bits of a predicate: which of (less, equal, greater, unordered) count as true. The signalling forms
// (16 apart) differ in exceptions alone.
inline bool compare(float x, float y, int predicate) {
  const bool unordered = x != x || y != y;
  switch (predicate & 15) {
    case 0: return !unordered && x == y;
    case 1: return !unordered && x < y;
    case 2: return !unordered && x <= y;
    case 3: return unordered;
    case 4: return unordered || x != y;
    case 5: return unordered || !(x < y);
    case 6: return unordered || !(x <= y);
    case 7: return !unordered;
    case 8: return unordered || x == y;
    case 9: return unordered || x < y;
    case 10: return unordered || x <= y;
    case 11: return false;
    case 12: return !unordered && x != y;
    case 13: return !unordered && x >= y;
    case 14: return !unordered && x > y;
    default: return true;
  }
}
}  // namespace emulate

inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  return __mmask16(emulate::mask_of<float>(a, b, [=](float x, float y) LOOSELEAF_ALWAYS { return emulate::compare(x, y, predicate); }));
}
inline __mmask16 _mm512_mask_cmp_ps_mask(uint64_t k, __m512 a, __m512 b, int predicate) {
  return __mmask16(k & _mm512_cmp_ps_mask(a, b, predicate));
}
inline __mmask8 _mm256_cmp_ps_mask(__m256 a, __m256 b, int predicate) {
  return __mmask8(emulate::mask_of<float>(a, b, [=](float x, float y) LOOSELEAF_ALWAYS { return emulate::compare(x, y, predicate); }));
}

inline __m512 _mm512_roundscale_ps(__m512 a, int mode) {
  if (mode >> 4) emulate::misuse("roundscale with binary places is not emulated");
  return emulate::map<float>(a, [=](float x) LOOSELEAF_ALWAYS {
    switch (mode & 7) {
      case 0: return __builtin_rintf(x);
      case 1: return __builtin_floorf(x);
      case 2: return __builtin_ceilf(x);
      case 3: return __builtin_truncf(x);
      default: return __builtin_nearbyintf(x);
    }
  });
}
// a · 2^floor(b).
LOOSELEAF_BINARY(float, __m512, scalef_ps,
                 y != y || x != x ? x + y : __builtin_ldexpf(x, int(y > 400 ? 400 : y < -400 ? -400 : __builtin_floorf(y))))

inline __m512i _mm512_cvtps_epi32(__m512 a) {
  const __m256i low = _mm256_cvtps_epi32(emulate::part<__m256>(a, 0)), high = _mm256_cvtps_epi32(emulate::part<__m256>(a, 1));
  return _mm512_inserti32x8(emulate::recast<__m512i>(low), high, 1);
}
inline __m512i _mm512_cvttps_epi32(__m512 a) {
  const __m256i low = _mm256_cvttps_epi32(emulate::part<__m256>(a, 0)), high = _mm256_cvttps_epi32(emulate::part<__m256>(a, 1));
  return _mm512_inserti32x8(emulate::recast<__m512i>(low), high, 1);
}
inline __m512 _mm512_cvtepi32_ps(__m512i a) { return emulate::convert<int32_t, float, __m512>(a); }
inline __m512 _mm512_cvtepu32_ps(__m512i a) { return emulate::convert<uint32_t, float, __m512>(a); }
inline __m512 _mm512_cvtph_ps(__m256i a) {
  return _mm512_insertf32x8(emulate::recast<__m512>(_mm256_cvtph_ps(emulate::part<__m128i>(a, 0))), _mm256_cvtph_ps(emulate::part<__m128i>(a, 1)), 1);
}
inline __m256i _mm512_cvtps_ph(__m512 a, int mode) {
  if ((mode & 7) != 0 && (mode & 4) == 0) emulate::misuse("only rounding to nearest is emulated");
  return _mm256_set_m128i(_mm256_cvtps_ph(emulate::part<__m256>(a, 1), 0), _mm256_cvtps_ph(emulate::part<__m256>(a, 0), 0));
}

// As the compiler's own: halves, quarters, eighths, one.
#define LOOSELEAF_REDUCE(name, op)                                                                                     \
  inline float _mm512_reduce_##name##_ps(__m512 a) {                                                                   \
    const __m256 eight = _mm256_##op##_ps(emulate::part<__m256>(a, 1), emulate::part<__m256>(a, 0));                                     \
    const __m128 four = _mm_##op##_ps(emulate::part<__m128>(eight, 1), emulate::part<__m128>(eight, 0));                                 \
    const __m128 two = _mm_##op##_ps(four, _mm_movehl_ps(four, four));                                                 \
    return _mm_cvtss_f32(_mm_##op##_ss(two, _mm_movehdup_ps(two)));                                                    \
  }
LOOSELEAF_REDUCE(add, add)
LOOSELEAF_REDUCE(max, max)
LOOSELEAF_REDUCE(min, min)
#undef LOOSELEAF_REDUCE

inline __m512 _mm512_permutexvar_ps(__m512i index, __m512 a) {
  const emulate::Lanes<int32_t, __m512i> at(index);
  const emulate::Lanes<float, __m512> x(a);
  return emulate::fill<float, __m512>([&](int i) LOOSELEAF_ALWAYS { return x.lane[at.lane[i] & 15]; });
}
inline __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
  const emulate::Lanes<int32_t, __m512i> at(index);
  const emulate::Lanes<float, __m512> x(a), y(b);
  return emulate::fill<float, __m512>([&](int i) LOOSELEAF_ALWAYS { return at.lane[i] & 16 ? y.lane[at.lane[i] & 15] : x.lane[at.lane[i] & 15]; });
}
inline __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int mode) {
  const emulate::Lanes<float, __m512> x(a), y(b);
  return emulate::fill<float, __m512>([&](int i) LOOSELEAF_ALWAYS { return ((i & 2) ? y : x).lane[(i & ~3) | (mode >> (i & 3) * 2 & 3)]; });
}
inline __m512 _mm512_permute_ps(__m512 a, int mode) { return _mm512_shuffle_ps(a, a, mode); }
inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int mode) {
  const auto quarter = [&](int i) LOOSELEAF_ALWAYS { return emulate::part<__m128>(i < 2 ? a : b, mode >> i * 2 & 3); };
  __m512 r{};
  for (int i = 0; i < 4; ++i) r = emulate::with_part(r, quarter(i), i);
  return r;
}

}  // namespace
}  // namespace looseleaf
