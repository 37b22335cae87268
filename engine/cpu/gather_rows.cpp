// GatherRows: copies the rows that need logits, [R, k] -> [L, k]. Bytes moved: each row twice.
#include <cstring>

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return not_multiple("k", request.k, 1);
}

void run(const OpCall& call, WorkRange range) {
    const uint64_t width = call.request->k;
    for (uint32_t row = range.begin; row < range.end; ++row) {
        std::memcpy(
            call.out + row * width, call.x + call.row.gather[row] * width, width * sizeof(float));
    }
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 8;
}

std::vector<OpRequest> test_requests() {
    OpRequest request;
    request.kind = OpKind::GatherRows;
    request.rows = 4;
    request.k = 67;
    return {request};
}

}  // namespace

void append_gather_rows(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "gather_rows.copy.f32.portable";
    entry.kind = OpKind::GatherRows;
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
