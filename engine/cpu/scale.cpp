// Scale: out[r][i] *= s[0], the constant that a tensor's weights were divided by before they were
// stored. Bytes moved: 8 per element.
#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return not_multiple("k", request.k, 1);
}

void run(const OpCall& call, WorkRange range) {
    const uint64_t k = call.request->k;
    const float scale = call.vector[0];
    float* const end = call.out + range.end * k;
    for (float* value = call.out + range.begin * k; value < end; ++value) *value *= scale;
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 8;
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const uint32_t k : {64u, 67u, 1u}) {
        OpRequest request;
        request.kind = OpKind::Scale;
        request.rows = 4;
        request.k = k;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_scale(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "scale.row.f32.portable";
    entry.kind = OpKind::Scale;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match;
    entry.items = items_rows;
    entry.run = run;
    entry.bytes_moved = bytes_moved;
    entry.tolerance = {.abs = 0, .rel = 1e-7, .nmse = 1e-14};
    entry.test_requests = test_requests;
    table.push_back(entry);
}

}  // namespace strata::cpu
