// Sums over a whole row, a block at a time: short loops without branches, which compilers turn
// into vector code, then kLanes running sums that are added up in a fixed order at the end.
#include "engine/decode/exponential.h"

#include <algorithm>
#include <array>

namespace strata {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBlock = 256;  // two blocks of f64 stay in the first-level cache
static_assert(kBlock % kLanes == 0);

using Lanes = std::array<double, kLanes>;
using Block = std::array<double, kBlock>;

double add_up(const Lanes& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Exponents of x[0, n) and their exponentials; behind n, weights of 0.
void fill_block(const float* x, size_t n, double best, double rate, Block& exponents, Block& w) {
    for (size_t i = 0; i < n; ++i) exponents[i] = (double{x[i]} - best) * rate;
    std::fill(exponents.begin() + static_cast<std::ptrdiff_t>(n), exponents.end(), kExponentMin);
    for (double& e : exponents) e = clamp_exponent(e);
    for (size_t i = 0; i < kBlock; ++i) w[i] = exp_nonpositive(exponents[i]);
    std::fill(w.begin() + static_cast<std::ptrdiff_t>(n), w.end(), 0.0);
}

}  // namespace

WeightSums sum_weights(const float* x, size_t n, float best, double rate) {
    Block exponents;
    Block w;
    Lanes weight{};
    Lanes weight_exponent{};
    for (size_t at = 0; at < n; at += kBlock) {
        fill_block(x + at, std::min(kBlock, n - at), double{best}, rate, exponents, w);
        for (size_t i = 0; i < kBlock; i += kLanes) {
            for (size_t lane = 0; lane < kLanes; ++lane) {
                weight[lane] += w[i + lane];
                weight_exponent[lane] += w[i + lane] * exponents[i + lane];
            }
        }
    }
    return {add_up(weight), add_up(weight_exponent)};
}

double sum_weight(const float* x, size_t n, float best, double rate) {
    Block exponents;
    Block w;
    Lanes weight{};
    for (size_t at = 0; at < n; at += kBlock) {
        fill_block(x + at, std::min(kBlock, n - at), double{best}, rate, exponents, w);
        for (size_t i = 0; i < kBlock; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) weight[lane] += w[i + lane];
    }
    return add_up(weight);
}

}  // namespace strata
