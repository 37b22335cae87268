// Concat: rows of x [R, k] and of y [R, n - k] side by side, [R, n]. Bytes moved: 8 per value.
#include <array>
#include <cstring>

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    if (request.k == 0 || request.k >= request.n)
        return one_of("k", std::to_string(request.k), "1 to below n");
    return std::nullopt;
}

void run(const OpCall& call, WorkRange range) {
    const uint64_t first = call.request->k;
    const uint64_t width = call.request->n;
    for (uint32_t row = range.begin; row < range.end; ++row) {
        float* out = call.out + row * width;
        std::memcpy(out, call.x + row * first, first * sizeof(float));
        std::memcpy(out + first, call.y + row * (width - first), (width - first) * sizeof(float));
    }
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.n * 8;
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const auto& [rows, k, n] : {std::array{4u, 64u, 128u}, {1u, 67u, 100u}, {3u, 1u, 3u}}) {
        OpRequest request;
        request.kind = OpKind::Concat;
        request.rows = rows;
        request.k = k;
        request.n = n;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_concat(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "concat.copy.f32.portable";
    entry.kind = OpKind::Concat;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match;
    entry.items = items_rows;
    entry.run = run;
    entry.bytes_moved = bytes_moved;
    entry.tolerance = {.abs = 0, .rel = 0, .nmse = 0};
    entry.test_requests = test_requests;
    table.push_back(entry);
}

}  // namespace strata::cpu
