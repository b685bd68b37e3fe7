// Emulated AVX-512: loads, stores, casts, parts of vectors.
#pragma once
#include "lanes.h"

#undef _mm512_extractf32x4_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_extracti32x4_epi32
#undef _mm512_extracti32x8_epi32
#undef _mm512_extracti64x4_epi64
#undef _mm512_extractf64x4_pd
#undef _mm512_insertf32x4
#undef _mm512_insertf32x8
#undef _mm512_inserti32x4
#undef _mm512_inserti32x8
#undef _mm512_inserti64x4
#undef _mm512_i32gather_ps
#undef _mm512_i32gather_epi32

namespace looseleaf {
namespace {

inline __m512 _mm512_loadu_ps(const void* p) { return emulate::read<__m512>(p); }
inline __m512i _mm512_loadu_si512(const void* p) { return emulate::read<__m512i>(p); }
inline __m512i _mm512_loadu_epi32(const void* p) { return emulate::read<__m512i>(p); }
inline __m512i _mm512_loadu_epi16(const void* p) { return emulate::read<__m512i>(p); }
inline __m512i _mm512_loadu_epi8(const void* p) { return emulate::read<__m512i>(p); }
inline void _mm512_storeu_ps(void* p, __m512 a) { emulate::write(p, a); }
inline void _mm512_storeu_si512(void* p, __m512i a) { emulate::write(p, a); }
inline void _mm512_storeu_epi32(void* p, __m512i a) { emulate::write(p, a); }
inline void _mm512_storeu_epi16(void* p, __m512i a) { emulate::write(p, a); }
inline void _mm512_storeu_epi8(void* p, __m512i a) { emulate::write(p, a); }

#define LOOSELEAF_ALIGNED(V, load, store, stream)                                                                      \
  inline V _mm512_##load(const void* p) {                                                                              \
    emulate::need_alignment(p, 64);                                                                                             \
    return emulate::read<V>(p);                                                                                                 \
  }                                                                                                                    \
  inline void _mm512_##store(void* p, V a) {                                                                           \
    emulate::need_alignment(p, 64);                                                                                             \
    emulate::write(p, a);                                                                                                       \
  }                                                                                                                    \
  inline void _mm512_##stream(void* p, V a) { _mm512_##store(p, a); }
LOOSELEAF_ALIGNED(__m512, load_ps, store_ps, stream_ps)
LOOSELEAF_ALIGNED(__m512i, load_si512, store_si512, stream_si512)
#undef LOOSELEAF_ALIGNED
inline __m512i _mm512_load_epi32(const void* p) { return _mm512_load_si512(p); }
inline void _mm512_store_epi32(void* p, __m512i a) { _mm512_store_si512(p, a); }
inline __m512i _mm512_stream_load_si512(const void* p) { return _mm512_load_si512(p); }

#define LOOSELEAF_MASKED(E, V, prefix, type)                                                                           \
  inline V prefix##_mask_loadu_##type(V src, uint64_t k, const void* p) { return emulate::masked_read<E>(src, k, p); }          \
  inline V prefix##_maskz_loadu_##type(uint64_t k, const void* p) { return emulate::masked_read<E>(V{}, k, p); }                \
  inline void prefix##_mask_storeu_##type(void* p, uint64_t k, V a) { emulate::masked_write<E>(p, k, a); }
LOOSELEAF_MASKED(float, __m512, _mm512, ps)
LOOSELEAF_MASKED(int32_t, __m512i, _mm512, epi32)
LOOSELEAF_MASKED(int16_t, __m512i, _mm512, epi16)
LOOSELEAF_MASKED(int8_t, __m512i, _mm512, epi8)
LOOSELEAF_MASKED(float, __m256, _mm256, ps)
LOOSELEAF_MASKED(int32_t, __m256i, _mm256, epi32)
LOOSELEAF_MASKED(int16_t, __m256i, _mm256, epi16)
LOOSELEAF_MASKED(int8_t, __m256i, _mm256, epi8)
LOOSELEAF_MASKED(float, __m128, _mm, ps)
LOOSELEAF_MASKED(int32_t, __m128i, _mm, epi32)
LOOSELEAF_MASKED(int16_t, __m128i, _mm, epi16)
LOOSELEAF_MASKED(int8_t, __m128i, _mm, epi8)
#undef LOOSELEAF_MASKED

inline __m512 _mm512_i32gather_ps(__m512i index, const void* p, int scale) {
  const emulate::Lanes<int32_t, __m512i> at(index);
  return emulate::fill<float, __m512>([&](int i) { return emulate::read<float>(static_cast<const char*>(p) + int64_t(at.lane[i]) * scale); });
}
inline __m512i _mm512_i32gather_epi32(__m512i index, const void* p, int scale) {
  return emulate::recast<__m512i>(_mm512_i32gather_ps(index, p, scale));
}

inline __m512i _mm512_castps_si512(__m512 a) { return emulate::recast<__m512i>(a); }
inline __m512 _mm512_castsi512_ps(__m512i a) { return emulate::recast<__m512>(a); }
inline __m256 _mm512_castps512_ps256(__m512 a) { return emulate::recast<__m256>(a); }
inline __m128 _mm512_castps512_ps128(__m512 a) { return emulate::recast<__m128>(a); }
inline __m512 _mm512_castps256_ps512(__m256 a) { return emulate::recast<__m512>(a); }
inline __m512 _mm512_castps128_ps512(__m128 a) { return emulate::recast<__m512>(a); }
inline __m512 _mm512_zextps256_ps512(__m256 a) { return emulate::recast<__m512>(a); }
inline __m512 _mm512_zextps128_ps512(__m128 a) { return emulate::recast<__m512>(a); }
inline __m256i _mm512_castsi512_si256(__m512i a) { return emulate::recast<__m256i>(a); }
inline __m128i _mm512_castsi512_si128(__m512i a) { return emulate::recast<__m128i>(a); }
inline __m512i _mm512_castsi256_si512(__m256i a) { return emulate::recast<__m512i>(a); }
inline __m512i _mm512_castsi128_si512(__m128i a) { return emulate::recast<__m512i>(a); }
inline __m512i _mm512_zextsi256_si512(__m256i a) { return emulate::recast<__m512i>(a); }
inline __m512i _mm512_zextsi128_si512(__m128i a) { return emulate::recast<__m512i>(a); }
inline float _mm512_cvtss_f32(__m512 a) { return emulate::part<float>(a, 0); }
inline int _mm512_cvtsi512_si32(__m512i a) { return emulate::part<int>(a, 0); }

inline __m256 _mm512_extractf32x8_ps(__m512 a, int i) { return emulate::part<__m256>(a, i & 1); }
inline __m128 _mm512_extractf32x4_ps(__m512 a, int i) { return emulate::part<__m128>(a, i & 3); }
inline __m256i _mm512_extracti64x4_epi64(__m512i a, int i) { return emulate::part<__m256i>(a, i & 1); }
inline __m256i _mm512_extracti32x8_epi32(__m512i a, int i) { return emulate::part<__m256i>(a, i & 1); }
inline __m128i _mm512_extracti32x4_epi32(__m512i a, int i) { return emulate::part<__m128i>(a, i & 3); }
inline __m512 _mm512_insertf32x8(__m512 a, __m256 b, int i) { return emulate::with_part(a, b, i & 1); }
inline __m512 _mm512_insertf32x4(__m512 a, __m128 b, int i) { return emulate::with_part(a, b, i & 3); }
inline __m512i _mm512_inserti64x4(__m512i a, __m256i b, int i) { return emulate::with_part(a, b, i & 1); }
inline __m512i _mm512_inserti32x8(__m512i a, __m256i b, int i) { return emulate::with_part(a, b, i & 1); }
inline __m512i _mm512_inserti32x4(__m512i a, __m128i b, int i) { return emulate::with_part(a, b, i & 3); }
inline __m512 _mm512_broadcast_f32x8(__m256 a) { return emulate::repeat<__m512>(a); }
inline __m512 _mm512_broadcast_f32x4(__m128 a) { return emulate::repeat<__m512>(a); }
inline __m512 _mm512_broadcastss_ps(__m128 a) { return emulate::repeat<__m512>(emulate::part<float>(a, 0)); }
inline __m512i _mm512_broadcast_i64x4(__m256i a) { return emulate::repeat<__m512i>(a); }
inline __m512i _mm512_broadcast_i32x8(__m256i a) { return emulate::repeat<__m512i>(a); }
inline __m512i _mm512_broadcast_i32x4(__m128i a) { return emulate::repeat<__m512i>(a); }
inline __m512i _mm512_broadcastd_epi32(__m128i a) { return emulate::repeat<__m512i>(emulate::part<int32_t>(a, 0)); }
inline __m512i _mm512_broadcastw_epi16(__m128i a) { return emulate::repeat<__m512i>(emulate::part<int16_t>(a, 0)); }
inline __m512i _mm512_broadcastb_epi8(__m128i a) { return emulate::repeat<__m512i>(emulate::part<int8_t>(a, 0)); }

}  // namespace
}  // namespace looseleaf
