// Which experts a row takes, and which rows an expert has (engine/plan/routing.h).
//
// Route: P = softmax of a row's logits in f32, in ascending order of experts; the experts_used
// largest, of equal ones the lower expert first; weights P / (their sum, by falling P) * scale. A
// row with a NaN or an infinity among its logits gets weights NaN and some experts, so that the
// fault shows in its outputs. Bytes moved: 4 experts + 8 experts_used of a row.
//
// GroupExperts: counting sort of the pairs by expert, rows ascending; one work item. Bytes moved:
// 16 of a pair and 8 of an expert.
#include "engine/plan/routing.h"

#include <cmath>

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

constexpr uint32_t kExpertsMax = 4096;
constexpr uint32_t kUsedMax = 256;

Refused match(const OpRequest& r) {
    if (r.experts == 0 || r.experts > kExpertsMax)
        return one_of("experts", std::to_string(r.experts), "1 to " + std::to_string(kExpertsMax));
    const uint32_t used_max = r.experts < kUsedMax ? r.experts : kUsedMax;
    if (r.experts_used == 0 || r.experts_used > used_max) {
        return one_of(
            "experts_used", std::to_string(r.experts_used), "1 to " + std::to_string(used_max));
    }
    return std::nullopt;
}

Refused match_route(const OpRequest& r) {
    if (r.k != r.experts) return one_of("k", std::to_string(r.k), "the number of experts");
    return match(r);
}

Routing routing_of(const OpCall& call) {
    return routing_view(call.routing, call.rows, call.request->experts_used, call.request->experts);
}

void softmax(const float* logits, uint32_t count, float* out) {
    float most = logits[0];
    for (uint32_t i = 1; i < count; ++i) most = logits[i] > most ? logits[i] : most;
    float sum = 0;
    for (uint32_t i = 0; i < count; ++i) {
        out[i] = std::exp(logits[i] - most);
        sum += out[i];
    }
    for (uint32_t i = 0; i < count; ++i) out[i] /= sum;
}

// The `used` largest by insertion; what equals a value stays behind it.
void choose(const float* values, uint32_t count, uint32_t used, uint32_t* chosen) {
    uint32_t held = 0;
    for (uint32_t i = 0; i < count; ++i) {
        if (held == used && !(values[i] > values[chosen[held - 1]])) continue;
        uint32_t at = held < used ? held++ : held - 1;
        for (; at > 0 && values[i] > values[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = i;
    }
}

void run_route(const OpCall& call, WorkRange range) {
    const Routing to = routing_of(call);
    auto* const values = reinterpret_cast<float*>(call.scratch);
    for (uint32_t row = range.begin; row < range.end; ++row) {
        const uint64_t at = uint64_t{row} * to.used;
        softmax(call.x + uint64_t{row} * to.experts, to.experts, values);
        choose(values, to.experts, to.used, to.chosen + at);
        float sum = 0;
        for (uint32_t i = 0; i < to.used; ++i) sum += values[to.chosen[at + i]];
        for (uint32_t i = 0; i < to.used; ++i)
            to.weights[at + i] = values[to.chosen[at + i]] / sum * call.scale;
    }
}

uint32_t one_item(const OpCall& /*call*/) {
    return 1;
}

void run_group(const OpCall& call, WorkRange /*range*/) {
    const Routing to = routing_of(call);
    const uint32_t pairs = to.rows * to.used;
    auto* const next = reinterpret_cast<uint32_t*>(call.scratch);  // of each expert
    for (uint32_t e = 0; e < to.experts; ++e) next[e] = 0;
    for (uint32_t i = 0; i < pairs; ++i) ++next[to.chosen[i]];
    uint32_t place = 0;
    uint32_t groups = 0;
    for (uint32_t e = 0; e < to.experts; ++e) {
        const uint32_t count = next[e];
        next[e] = place;
        if (count == 0) continue;
        to.group_expert[groups] = e;
        to.group_begin[groups++] = place;
        place += count;
    }
    to.group_begin[groups] = place;
    *to.group_count = groups;
    for (uint32_t i = 0; i < pairs; ++i) {
        const uint32_t at = next[to.chosen[i]]++;
        to.places[i] = at;
        to.row_of[at] = i / to.used;
    }
}

uint64_t scratch_bytes(const OpRequest& r) {
    return uint64_t{r.experts} * sizeof(float);
}

uint64_t bytes_route(const OpRequest& r) {
    return uint64_t{r.rows} * (4ull * r.experts + 8ull * r.experts_used);
}

uint64_t bytes_group(const OpRequest& r) {
    return uint64_t{r.rows} * r.experts_used * 16 + 8ull * r.experts;
}

template <OpKind kKind>
std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    const struct {
        uint32_t rows, experts, used;
    } shapes[] = {{1, 3, 1}, {5, 8, 2}, {19, 64, 10}, {4, 4, 4}, {2, 1, 1}};
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = kKind;
        request.rows = shape.rows;
        request.experts = shape.experts;
        request.experts_used = shape.used;
        request.k = kKind == OpKind::Route ? shape.experts : 0;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_routing(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "route.softmax.f32.portable";
    entry.kind = OpKind::Route;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match_route;
    entry.items = items_rows;
    entry.run = run_route;
    entry.scratch_bytes = scratch_bytes;
    entry.bytes_moved = bytes_route;
    // Weights of at most 1: e^x to one unit in the last place, sums of up to `experts` terms.
    entry.tolerance = {.abs = 1e-6, .rel = 1e-5, .nmse = 1e-11};
    entry.test_requests = test_requests<OpKind::Route>;
    table.push_back(entry);

    entry.id = "group_experts.counting_sort.portable";
    entry.kind = OpKind::GroupExperts;
    entry.match = match;
    entry.items = one_item;
    entry.run = run_group;
    entry.bytes_moved = bytes_group;
    entry.tolerance = {.abs = 0, .rel = 0, .nmse = 0};
    entry.test_requests = test_requests<OpKind::GroupExperts>;
    table.push_back(entry);
}

}  // namespace strata::cpu
