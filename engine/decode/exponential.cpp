// The sum over a whole row, a block at a time: short loops without branches, which compilers turn
// into vector code, then kLanes running sums that are added up in a fixed order at the end.
#include "engine/decode/exponential.h"

#include <algorithm>
#include <array>

namespace strata {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBlock = 256;  // f64, stays in the first-level cache
static_assert(kBlock % kLanes == 0);

using Lanes = std::array<double, kLanes>;
using Block = std::array<double, kBlock>;

double add_up(const Lanes& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Weights of x[0, n); behind n, weights of 0.
void fill_block(const float* x, size_t n, double best, double rate, Block& w) {
    for (size_t i = 0; i < n; ++i) w[i] = (double{x[i]} - best) * rate;
    std::fill(w.begin() + static_cast<std::ptrdiff_t>(n), w.end(), 0.0);
    for (double& e : w) e = clamp_exponent(e);
    for (double& e : w) e = exp_nonpositive(e);
    std::fill(w.begin() + static_cast<std::ptrdiff_t>(n), w.end(), 0.0);
}

}  // namespace

double sum_weight(const float* x, size_t n, float best, double rate) {
    Block w;
    Lanes sums{};
    for (size_t at = 0; at < n; at += kBlock) {
        fill_block(x + at, std::min(kBlock, n - at), double{best}, rate, w);
        for (size_t i = 0; i < kBlock; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += w[i + lane];
    }
    return add_up(sums);
}

}  // namespace strata
