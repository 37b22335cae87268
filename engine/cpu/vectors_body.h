// Walks over rows in vectors of the lanes included before, and e^x. What the bodies of all families
// share.
#pragma once

#include <stdint.h>

namespace strata::cpu {
namespace {

// Calls fn(offset, count) for whole vectors and then for what is left.
template <class Fn>
inline void for_vectors(uint32_t k, Fn fn) {
    uint32_t i = 0;
    for (; i + V::kWidth <= k; i += V::kWidth) fn(i, uint32_t{V::kWidth});
    if (i < k) fn(i, k - i);
}

inline V::T load_part(const float* at, uint32_t n) {
    return n == V::kWidth ? V::load(at) : V::load_n(at, n);
}

inline void store_part(float* at, V::T a, uint32_t n) {
    if (n == V::kWidth) {
        V::store(at, a);
    } else {
        V::store_n(at, a, n);
    }
}

// e^x to about 1 ulp for x in [-87.3, 88]; below that 0, above e^88; NaN stays NaN. x = n ln 2 + r
// with |r| <= ln 2 / 2, then the Taylor series of e^r to r^7 (remainder 5e-9) times 2^n.
inline V::T exponential(V::T x) {
    const V::T low = V::set1(-87.3f);
    const V::T clamped = V::min(V::set1(88.0f), V::max(low, x));
    const V::T n = V::round(V::mul(clamped, V::set1(1.44269504f)));
    // ln 2 in two parts; the first has 9 bits, so that n times it is exact.
    V::T r = V::sub(clamped, V::mul(n, V::set1(0.693359375f)));
    r = V::sub(r, V::mul(n, V::set1(-2.12194440e-4f)));
    V::T p = V::set1(1.0f / 5040.0f);
    p = V::fma(p, r, V::set1(1.0f / 720.0f));
    p = V::fma(p, r, V::set1(1.0f / 120.0f));
    p = V::fma(p, r, V::set1(1.0f / 24.0f));
    p = V::fma(p, r, V::set1(1.0f / 6.0f));
    p = V::fma(p, r, V::set1(0.5f));
    p = V::fma(p, r, V::set1(1.0f));
    p = V::fma(p, r, V::set1(1.0f));
    return V::zero_below(x, low, V::mul(p, V::pow2(n)));
}

}  // namespace
}  // namespace strata::cpu
