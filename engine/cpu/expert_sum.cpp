// ExpertSum: out[r] = sum over the experts of row r, by falling weight, of weight * x[place], one
// chain of multiply and add per element. Bytes moved: 4 (experts_used + 1) per element.
//
// GatedAdd: out[r] += x[r] / (1 + e^-y[r]), y one number a row. Bytes moved: 12 per element.
#include <cmath>

#include "engine/cpu/entries.h"
#include "engine/plan/routing.h"

namespace strata::cpu {
namespace {

Refused match_sum(const OpRequest& r) {
    if (r.experts_used == 0) return one_of("experts_used", "0", "1 and up");
    return not_multiple("k", r.k, 1);
}

void run_sum(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    const Routing routing = routing_view(call.routing, call.rows, r.experts_used, r.experts);
    for (uint32_t row = range.begin; row < range.end; ++row) {
        float* const out = call.out + uint64_t{row} * r.k;
        for (uint32_t rank = 0; rank < routing.used; ++rank) {
            const uint64_t pair = uint64_t{row} * routing.used + rank;
            const float weight = routing.weights[pair];
            const float* const x = call.x + uint64_t{routing.places[pair]} * r.k;
            for (uint32_t i = 0; i < r.k; ++i)
                out[i] = rank == 0 ? weight * x[i] : out[i] + weight * x[i];
        }
    }
}

uint64_t bytes_sum(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 4 * (r.experts_used + 1ull);
}

Refused match_gated(const OpRequest& r) {
    return not_multiple("k", r.k, 1);
}

void run_gated(const OpCall& call, WorkRange range) {
    const uint32_t k = call.request->k;
    for (uint32_t row = range.begin; row < range.end; ++row) {
        const float gate = 1.0f / (1.0f + std::exp(-call.y[row]));
        const float* const x = call.x + uint64_t{row} * k;
        float* const out = call.out + uint64_t{row} * k;
        for (uint32_t i = 0; i < k; ++i) out[i] += gate * x[i];
    }
}

uint64_t bytes_gated(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 12;
}

std::vector<OpRequest> sum_requests() {
    std::vector<OpRequest> requests;
    const struct {
        uint32_t rows, k, experts, used;
    } shapes[] = {{1, 64, 4, 1}, {5, 67, 8, 2}, {19, 3, 64, 10}};
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::ExpertSum;
        request.rows = shape.rows;
        request.k = shape.k;
        request.experts = shape.experts;
        request.experts_used = shape.used;
        requests.push_back(request);
    }
    return requests;
}

std::vector<OpRequest> gated_requests() {
    std::vector<OpRequest> requests;
    for (const uint32_t k : {64u, 67u, 3u}) {
        OpRequest request;
        request.kind = OpKind::GatedAdd;
        request.rows = 4;
        request.k = k;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_expert_sum(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "expert_sum.row.f32.portable";
    entry.kind = OpKind::ExpertSum;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match_sum;
    entry.items = items_rows;
    entry.run = run_sum;
    entry.bytes_moved = bytes_sum;
    entry.tolerance = {.abs = 1e-5, .rel = 1e-5, .nmse = 1e-12};
    entry.test_requests = sum_requests;
    table.push_back(entry);

    entry.id = "gated_add.row.f32.portable";
    entry.kind = OpKind::GatedAdd;
    entry.match = match_gated;
    entry.run = run_gated;
    entry.bytes_moved = bytes_gated;
    entry.tolerance = {.abs = 1e-6, .rel = 1e-6, .nmse = 1e-13};
    entry.test_requests = gated_requests;
    table.push_back(entry);
}

}  // namespace strata::cpu
