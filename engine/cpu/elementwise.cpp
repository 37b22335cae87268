// SwiGlu: out = gate / (1 + e^-gate) * up (x gate, y up). Add: out += y. All [R, k]. Bytes moved:
// 12 per value.
#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return not_multiple("k", request.k, 1);
}

PairArgs pair_args(const OpCall& call) {
    return {call.x, call.y, call.out, call.request->k};
}

template <Isa kIsa>
void run_swiglu(const OpCall& call, WorkRange range) {
    isa_ops<kIsa>().swiglu(pair_args(call), range.begin, range.end);
}

template <Isa kIsa>
void run_add(const OpCall& call, WorkRange range) {
    isa_ops<kIsa>().add(pair_args(call), range.begin, range.end);
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 12;
}

template <OpKind kKind>
std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const uint32_t k : {64u, 67u, 3u}) {
        OpRequest request;
        request.kind = kKind;
        request.rows = 4;
        request.k = k;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_elementwise(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        KernelEntry entry;
        entry.id = "swiglu.row.f32." + std::string(isa_name(isa));
        entry.kind = OpKind::SwiGlu;
        entry.isa = isa_name(isa);
        entry.match = match;
        entry.items = items_rows;
        entry.run = run_swiglu<constant()>;
        entry.bytes_moved = bytes_moved;
        entry.tolerance = {.abs = 1e-6, .rel = 1e-6, .nmse = 1e-13};
        entry.test_requests = test_requests<OpKind::SwiGlu>;
        table.push_back(entry);

        entry.id = "add.row.f32." + std::string(isa_name(isa));
        entry.kind = OpKind::Add;
        entry.run = run_add<constant()>;
        entry.tolerance = {.abs = 0, .rel = 1e-7, .nmse = 1e-14};
        entry.test_requests = test_requests<OpKind::Add>;
        table.push_back(entry);
    });
}

}  // namespace strata::cpu
