// Sixteen lanes in plain C++: what the other files of this folder do with registers. Include in one kernel file
// only: everything is in an anonymous namespace, so that no two instruction sets share a function's code.
#pragma once
#include <cstdint>
#include <cstring>

namespace looseleaf {
namespace {

struct F16 {
  float lane[16];
};
struct I16 {
  int32_t lane[16];
};

#define LOOSELEAF_LANES for (int i = 0; i < 16; ++i)

inline F16 set1(float x) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = x;
  return r;
}
inline F16 zero() { return set1(0.0f); }
inline F16 load(const float* p) {
  F16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline void store(float* p, const F16& a) { std::memcpy(p, a.lane, sizeof a.lane); }

inline F16 operator+(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] + b.lane[i];
  return r;
}
inline F16 operator-(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] - b.lane[i];
  return r;
}
inline F16 operator*(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] * b.lane[i];
  return r;
}
inline F16 operator/(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] / b.lane[i];
  return r;
}
// a · b + c. Rounded twice here, once on the other instruction sets; the same for every row either way.
inline F16 fma(const F16& a, const F16& b, const F16& c) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
  return r;
}
// As the x86 instructions: the second operand if either is NaN.
inline F16 max(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return r;
}
inline F16 min(const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return r;
}

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
// Round to nearest even; a NaN stays one.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline F16 load_bf16(const uint16_t* p) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = from_bf16(p[i]);
  return r;
}
inline void store_bf16(uint16_t* p, const F16& a) { LOOSELEAF_LANES p[i] = to_bf16(a.lane[i]); }
// The first, or the second, of each of 16 pairs.
inline F16 load_bf16_even(const uint16_t* p) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = from_bf16(p[2 * i]);
  return r;
}
inline F16 load_bf16_odd(const uint16_t* p) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = from_bf16(p[2 * i + 1]);
  return r;
}
// 32 numbers, as 16 pairs: the first of each pair to `even`, the second to `odd`.
inline void load_bf16_pairs(const uint16_t* p, F16& even, F16& odd) {
  LOOSELEAF_LANES {
    even.lane[i] = from_bf16(p[2 * i]);
    odd.lane[i] = from_bf16(p[2 * i + 1]);
  }
}

// In a tree of fixed shape: lanes 8 apart, then 4, 2, 1.
inline float sum(const F16& a) {
  float r[16];
  std::memcpy(r, a.lane, sizeof r);
  for (int apart = 8; apart > 0; apart /= 2)
    for (int i = 0; i < apart; ++i) r[i] = r[i] + r[i + apart];
  return r[0];
}
inline float highest(const F16& a) {
  float r = a.lane[0];
  for (int i = 1; i < 16; ++i) r = a.lane[i] > r ? a.lane[i] : r;
  return r;
}
// Lanes below `count` of `a`, the others of `b`.
inline F16 first_lanes(int count, const F16& a, const F16& b) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = i < count ? a.lane[i] : b.lane[i];
  return r;
}

// `a`, but 0 in the lanes where `x` is below `limit`.
inline F16 zero_below(const F16& x, const F16& limit, const F16& a) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = x.lane[i] < limit.lane[i] ? 0.0f : a.lane[i];
  return r;
}

// Nearest integer, ties to even; |a| below 2^22.
inline F16 round_even(const F16& a) {
  const float shift = 12582912.0f;  // 1.5 · 2^23
  F16 r;
  LOOSELEAF_LANES {
    volatile float moved = a.lane[i] + shift;
    r.lane[i] = moved - shift;
  }
  return r;
}
// a · 2^n for an integer-valued n in [-126, 127].
inline F16 scale_by_power(const F16& a, const F16& n) {
  F16 r;
  LOOSELEAF_LANES {
    const uint32_t bits = uint32_t(int32_t(n.lane[i]) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    r.lane[i] = a.lane[i] * power;
  }
  return r;
}

// IEEE half precision; to_half rounds to nearest even.
inline float from_half(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  float x;
  if (rest < 0x400u) {  // zero, subnormal
    x = float(rest) * 5.9604644775390625e-8f;  // 2^-24
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    wide |= sign;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  const uint32_t wide = sign | (rest >= 0x7c00u ? (rest << 13) | 0x7f800000u : (rest << 13) + 0x38000000u);
  std::memcpy(&x, &wide, 4);
  return x;
}
inline uint16_t to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (size >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (size < 0x38800000u) {  // subnormal: adding 1/2 leaves the multiple of 2^-24 in the low bits
    float shifted;
    std::memcpy(&shifted, &size, 4);
    volatile float moved = shifted + 0.5f;
    const float result = moved;
    uint32_t low;
    std::memcpy(&low, &result, 4);
    return uint16_t(sign | (low - 0x3f000000u));
  }
  return uint16_t(sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13));
}
inline F16 load_half(const uint16_t* p) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = from_half(p[i]);
  return r;
}

// Rounded to nearest even; |a| at most 32767, or 127.
inline void store_int16(int16_t* p, const F16& a) {
  const F16 whole = round_even(a);
  LOOSELEAF_LANES p[i] = int16_t(whole.lane[i]);
}
inline void store_int8(int8_t* p, const F16& a) {
  const F16 whole = round_even(a);
  LOOSELEAF_LANES p[i] = int8_t(whole.lane[i]);
}

// 16 pairs of int16.
struct Pairs {
  int16_t lane[32];
};
inline Pairs widen_pairs(const int8_t* p) {
  Pairs r;
  for (int i = 0; i < 32; ++i) r.lane[i] = p[i];
  return r;
}
// Nibble `which` (0: the lowest … 3) of each of 32 words.
template <int which>
inline Pairs nibble_pairs(const uint16_t* p) {
  Pairs r;
  for (int i = 0; i < 32; ++i) r.lane[i] = int16_t((p[i] >> (4 * which)) & 15);
  return r;
}
inline I16 set1_int(int32_t x) {
  I16 r;
  LOOSELEAF_LANES r.lane[i] = x;
  return r;
}
inline I16 zero_int() { return I16{}; }
inline I16 load_int(const int32_t* p) {
  I16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline void store_int(int32_t* p, const I16& a) { std::memcpy(p, a.lane, sizeof a.lane); }
inline I16 operator+(const I16& a, const I16& b) {  // wraps around
  I16 r;
  LOOSELEAF_LANES r.lane[i] = int32_t(uint32_t(a.lane[i]) + uint32_t(b.lane[i]));
  return r;
}
inline F16 to_float(const I16& a) {
  F16 r;
  LOOSELEAF_LANES r.lane[i] = float(a.lane[i]);
  return r;
}
// 16 lanes, each acc + p[2i] · x0 + p[2i+1] · x1; `pair` holds the int16 x0 in its low half and x1 in its high half.
inline I16 dot_pairs(const I16& acc, const int8_t* p, int32_t pair) {
  const int32_t x0 = int16_t(pair & 0xffff), x1 = pair >> 16;
  I16 r;
  LOOSELEAF_LANES r.lane[i] = acc.lane[i] + int32_t(p[2 * i]) * x0 + int32_t(p[2 * i + 1]) * x1;
  return r;
}
inline I16 dot_pairs(const I16& acc, const Pairs& p, int32_t pair) {
  const int32_t x0 = int16_t(pair & 0xffff), x1 = pair >> 16;
  I16 r;
  LOOSELEAF_LANES r.lane[i] = acc.lane[i] + int32_t(p.lane[2 * i]) * x0 + int32_t(p.lane[2 * i + 1]) * x1;
  return r;
}

#undef LOOSELEAF_LANES

}  // namespace
}  // namespace looseleaf
