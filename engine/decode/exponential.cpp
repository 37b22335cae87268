// Sums over a whole row: kLanes running sums that the compiler keeps in vector registers, added
// up in a fixed order at the end.
#include "engine/decode/exponential.h"

#include <array>

namespace strata {
namespace {

constexpr size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double add_up(const Lanes& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// The clamp keeps w * exponent finite where x is -inf.
double exponent(float x, double best, double rate) {
    const double e = (double{x} - best) * rate;
    return e > kExponentMin ? e : kExponentMin;
}

}  // namespace

WeightSums sum_weights(const float* x, size_t n, float best, double rate) {
    const double top = double{best};
    Lanes weight{};
    Lanes weight_exponent{};
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const double e = exponent(x[i + lane], top, rate);
            const double w = exp_nonpositive(e);
            weight[lane] += w;
            weight_exponent[lane] += w * e;
        }
    }
    for (size_t lane = 0; i < n; ++i, ++lane) {
        const double e = exponent(x[i], top, rate);
        const double w = exp_nonpositive(e);
        weight[lane] += w;
        weight_exponent[lane] += w * e;
    }
    return {add_up(weight), add_up(weight_exponent)};
}

double sum_weight(const float* x, size_t n, float best, double rate) {
    const double top = double{best};
    Lanes weight{};
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane)
            weight[lane] += exp_nonpositive((double{x[i + lane]} - top) * rate);
    for (size_t lane = 0; i < n; ++i, ++lane)
        weight[lane] += exp_nonpositive((double{x[i]} - top) * rate);
    return add_up(weight);
}

}  // namespace strata
