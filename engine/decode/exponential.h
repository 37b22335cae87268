// exp() for softmax weights, in plain arithmetic: the compiler can vectorise it, and its bits do
// not depend on the C library, so the same logits give the same draw on every machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace strata {

// Least exponent; what is below counts as this one (1e-304: nothing beside the weight 1 of the
// best token).
inline constexpr double kExponentMin = -700.0;

inline double clamp_exponent(double x) {
    return x > kExponentMin ? x : kExponentMin;
}

// exp(x) for x in [kExponentMin, 0], relative error below 4e-16.
// x = k ln 2 + r with |r| <= ln 2 / 2; exp(r) is the interpolation polynomial of degree 10 at the
// Chebyshev nodes of that interval; 2^k is added to the exponent field.
inline double exp_nonpositive(double x) {
    constexpr double kLog2E = 0x1.71547652b82fep+0;
    constexpr double kLn2High = 0x1.62e42fefa0000p-1;  // times k is exact
    constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
    constexpr double kRound = 0x1.8p+52;  // adding it rounds to an integer, left in the low bits
    const double shifted = x * kLog2E + kRound;
    const double k = shifted - kRound;
    const double r = (x - k * kLn2High) - k * kLn2Low;
    double p = 0x1.28a2ca617b969p-22;
    p = p * r + 0x1.72fafebdaf273p-19;
    p = p * r + 0x1.a019a6611cad5p-16;
    p = p * r + 0x1.a01978b8b3d18p-13;
    p = p * r + 0x1.6c16c17f46982p-10;
    p = p * r + 0x1.1111112ddae8bp-7;
    p = p * r + 0x1.55555555520a4p-5;
    p = p * r + 0x1.555555554b736p-3;
    p = p * r + 0x1.0000000000005p-1;
    p = p * r + 0x1.000000000001ep+0;
    p = p * r + 0x1.0000000000000p+0;
    return std::bit_cast<double>(std::bit_cast<uint64_t>(p) +
                                 (std::bit_cast<uint64_t>(shifted) << 52));
}

// const float* x;  // [n], each at most `best`, -inf allowed
// Sum of the weights exp((x[i] - best) * rate) in f64, in a fixed order.
double sum_weight(const float* x, size_t n, float best, double rate);

}  // namespace strata
