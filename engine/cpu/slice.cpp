// Slice: x [R, k] in `heads` equal groups; of each group the n / heads values from `offset`, side
// by side: [R, n]. Bytes moved: 8 per value of the result.
#include <array>
#include <cstring>

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& r) {
    if (r.heads == 0) return one_of("heads", "0", "1 and up");
    if (const Refused refused = not_multiple("k", r.k, r.heads)) return refused;
    if (const Refused refused = not_multiple("n", r.n, r.heads)) return refused;
    if (uint64_t{r.offset} + r.n / r.heads > r.k / r.heads)
        return one_of("offset", std::to_string(r.offset), "at most (k - n) / heads");
    return std::nullopt;
}

void run(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    const uint64_t from_width = r.k / r.heads;
    const uint64_t to_width = r.n / r.heads;
    for (uint64_t row = range.begin; row < range.end; ++row) {
        const float* from = call.x + row * r.k + r.offset;
        float* to = call.out + row * r.n;
        for (uint32_t group = 0; group < r.heads; ++group)
            std::memcpy(to + group * to_width, from + group * from_width, to_width * sizeof(float));
    }
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.n * 8;
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const auto& [rows, heads, from, offset, to] :
         {std::array{4u, 4u, 64u, 32u, 32u}, {1u, 1u, 100u, 33u, 67u}, {3u, 2u, 6u, 3u, 3u}}) {
        OpRequest request;
        request.kind = OpKind::Slice;
        request.rows = rows;
        request.heads = heads;
        request.k = heads * from;
        request.n = heads * to;
        request.offset = offset;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_slice(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "slice.copy.f32.portable";
    entry.kind = OpKind::Slice;
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
