// Functions over sixteen lanes, the same steps on every instruction set. Include after one of portable.h, avx2.h, avx512.h.
#pragma once

namespace looseleaf {
namespace {

// e^x within 2 units in the last place for x in [-87, 88]; below that 0, above it as at 88. NaN gives a NaN.
// Range reduction by log 2 in two parts and a polynomial of degree 6 (the coefficients of Cephes' expf).
inline F16 exp(F16 x) {
  const F16 lowest = set1(-87.0f);
  const F16 clamped = min(set1(88.0f), max(lowest, x));  // in this order a NaN in x comes through
  const F16 n = round_even(clamped * set1(1.44269504088896341f));
  F16 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return zero_below(x, lowest, scale_by_power(p, n));
}

}  // namespace
}  // namespace looseleaf
