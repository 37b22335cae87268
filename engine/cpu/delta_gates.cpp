// DeltaGates: of each value head the decay e^(rate * softplus(x + bias)) and the step sigmoid(y),
// [R, decays [heads], steps [heads]]. In f64: a few values a row, and a decay is applied thousands
// of times. Bytes moved: 16 per value.
#include <algorithm>
#include <cmath>

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return not_multiple("heads", request.heads, 1);
}

// log(1 + e^x), without overflow.
double softplus(double x) {
    return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

void run(const OpCall& call, WorkRange range) {
    const uint64_t heads = call.request->heads;
    for (uint64_t row = range.begin; row < range.end; ++row) {
        float* const out = call.out + row * 2 * heads;
        for (uint64_t head = 0; head < heads; ++head) {
            const double alpha = double{call.x[row * heads + head]} + double{call.vector[head]};
            const double beta = double{call.y[row * heads + head]};
            out[head] = static_cast<float>(std::exp(double{call.vector2[head]} * softplus(alpha)));
            out[heads + head] = static_cast<float>(1.0 / (1.0 + std::exp(-beta)));
        }
    }
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.heads * 16;
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const uint32_t heads : {48u, 6u, 1u}) {
        OpRequest request;
        request.kind = OpKind::DeltaGates;
        request.rows = 4;
        request.heads = request.k = heads;
        request.n = 2 * heads;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_delta_gates(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "delta_gates.f64.f32.portable";
    entry.kind = OpKind::DeltaGates;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match;
    entry.items = items_rows;
    entry.run = run;
    entry.bytes_moved = bytes_moved;
    entry.tolerance = {.abs = 1e-7, .rel = 2e-7, .nmse = 1e-14};
    entry.test_requests = test_requests;
    table.push_back(entry);
}

}  // namespace strata::cpu
