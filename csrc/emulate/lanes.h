// What the emulated instructions are written with: vectors taken apart into lanes and put together again.
//
// The functions of this folder bear the intrinsics' names inside namespace looseleaf, so they hide the compiler's own
// from the kernels; a kernel that needs one that is not here fails to compile. Types are the compiler's.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// An emulating build inlines nothing else: the kernels would grow by a call's worth of code for every instruction.
#define LOOSELEAF_ALWAYS __attribute__((always_inline))

namespace looseleaf {
namespace {
namespace emulate {

// Where the processor would raise an exception.
[[noreturn, gnu::cold, gnu::noinline]] void misuse(const char* what) {
  std::fprintf(stderr, "emulated instruction: %s\n", what);
  std::abort();
}

template <class E, class V>
struct Lanes {
  static constexpr int count = sizeof(V) / sizeof(E);
  alignas(V) E lane[count];

  Lanes() = default;
  LOOSELEAF_ALWAYS explicit Lanes(const V& v) { std::memcpy(lane, &v, sizeof v); }
  LOOSELEAF_ALWAYS V vector() const {
    V v;
    std::memcpy(&v, lane, sizeof v);
    return v;
  }
};

template <class E, class V, class F>
LOOSELEAF_ALWAYS inline V fill(const F& f) {
  Lanes<E, V> r;
  for (int i = 0; i < r.count; ++i) r.lane[i] = E(f(i));
  return r.vector();
}
template <class E, class V, class F>
LOOSELEAF_ALWAYS inline V map(V a, const F& f) {
  const Lanes<E, V> x(a);
  return fill<E, V>([&](int i) LOOSELEAF_ALWAYS { return f(x.lane[i]); });
}
template <class E, class V, class F>
LOOSELEAF_ALWAYS inline V zip(V a, V b, const F& f) {
  const Lanes<E, V> x(a), y(b);
  return fill<E, V>([&](int i) LOOSELEAF_ALWAYS { return f(x.lane[i], y.lane[i]); });
}
// Lane by lane from one type to another, as the assignment of C++ converts.
template <class From, class To, class W, class V>
LOOSELEAF_ALWAYS inline W convert(V a) {
  const Lanes<From, V> x(a);
  Lanes<To, W> r;
  static_assert(Lanes<From, V>::count == Lanes<To, W>::count);
  for (int i = 0; i < r.count; ++i) r.lane[i] = To(x.lane[i]);
  return r.vector();
}
// The same, but values that do not fit become the nearest that does.
template <class From, class To, class W, class V>
LOOSELEAF_ALWAYS inline W saturate(V a, From low, From high) {
  return convert<From, To, W>(map<From>(a, [=](From x) LOOSELEAF_ALWAYS { return x < low ? low : x > high ? high : x; }));
}
template <class E, class V>
LOOSELEAF_ALWAYS inline V select(uint64_t mask, V yes, V no) {
  const Lanes<E, V> x(yes), y(no);
  return fill<E, V>([&](int i) LOOSELEAF_ALWAYS { return mask >> i & 1 ? x.lane[i] : y.lane[i]; });
}
template <class E, class V, class F>
LOOSELEAF_ALWAYS inline uint64_t mask_of(V a, V b, const F& f) {
  const Lanes<E, V> x(a), y(b);
  uint64_t mask = 0;
  for (int i = 0; i < x.count; ++i) mask |= uint64_t(f(x.lane[i], y.lane[i])) << i;
  return mask;
}
// Reinterpreted: any vector as another, the part that both have; the rest, if any, is zero.
template <class W, class V>
LOOSELEAF_ALWAYS inline W recast(const V& a) {
  W r{};
  std::memcpy(&r, &a, sizeof r < sizeof a ? sizeof r : sizeof a);
  return r;
}
template <class W, class V>
LOOSELEAF_ALWAYS inline W part(const V& a, int index) {
  W r;
  std::memcpy(&r, reinterpret_cast<const char*>(&a) + index * sizeof r, sizeof r);
  return r;
}
template <class V, class W>
LOOSELEAF_ALWAYS inline V with_part(V a, const W& b, int index) {
  std::memcpy(reinterpret_cast<char*>(&a) + index * sizeof b, &b, sizeof b);
  return a;
}
template <class V, class W>
LOOSELEAF_ALWAYS inline V repeat(const W& a) {
  V r;
  for (size_t i = 0; i < sizeof r / sizeof a; ++i) std::memcpy(reinterpret_cast<char*>(&r) + i * sizeof a, &a, sizeof a);
  return r;
}

template <class V>
LOOSELEAF_ALWAYS inline V read(const void* p) {
  V r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
template <class V>
LOOSELEAF_ALWAYS inline void write(void* p, const V& a) {
  std::memcpy(p, &a, sizeof a);
}
LOOSELEAF_ALWAYS inline void need_alignment(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes) misuse("an aligned load or store at an address that is not");
}
// Memory of lanes that are off is not touched.
template <class E, class V>
LOOSELEAF_ALWAYS inline V masked_read(V otherwise, uint64_t mask, const void* p) {
  Lanes<E, V> r(otherwise);
  for (int i = 0; i < r.count; ++i)
    if (mask >> i & 1) std::memcpy(&r.lane[i], static_cast<const char*>(p) + i * sizeof(E), sizeof(E));
  return r.vector();
}
template <class E, class V>
LOOSELEAF_ALWAYS inline void masked_write(void* p, uint64_t mask, const V& a) {
  const Lanes<E, V> x(a);
  for (int i = 0; i < x.count; ++i)
    if (mask >> i & 1) std::memcpy(static_cast<char*>(p) + i * sizeof(E), &x.lane[i], sizeof(E));
}

}  // namespace emulate

// An operation of two 512-bit operands with its two masked forms; of one.
#define LOOSELEAF_BINARY(E, V, name, expression)                                                                       \
  inline V _mm512_##name(V a, V b) {                                                                                   \
    return emulate::zip<E>(a, b, [](E x, E y) LOOSELEAF_ALWAYS { return expression; });                                                          \
  }                                                                                                                    \
  inline V _mm512_mask_##name(V src, uint64_t k, V a, V b) { return emulate::select<E>(k, _mm512_##name(a, b), src); }          \
  inline V _mm512_maskz_##name(uint64_t k, V a, V b) { return emulate::select<E>(k, _mm512_##name(a, b), V{}); }
#define LOOSELEAF_UNARY(E, V, name, expression)                                                                        \
  inline V _mm512_##name(V a) {                                                                                        \
    return emulate::map<E>(a, [](E x) LOOSELEAF_ALWAYS { return expression; });                                                                  \
  }                                                                                                                    \
  inline V _mm512_mask_##name(V src, uint64_t k, V a) { return emulate::select<E>(k, _mm512_##name(a), src); }                  \
  inline V _mm512_maskz_##name(uint64_t k, V a) { return emulate::select<E>(k, _mm512_##name(a), V{}); }

}  // namespace
}  // namespace looseleaf
