// Quantize: f32 [R, k] -> I8Block [R, k]; layout and rounding in quantize.h. Bytes moved: 5.25 per
// value.
#include "engine/cpu/quantize.h"

#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return not_multiple("k", request.k, kQuantBlock);
}

template <Isa kIsa>
void run(const OpCall& call, WorkRange range) {
    QuantizeArgs args{};
    args.x = call.x;
    args.values = call.quant.values;
    args.scales = call.quant.scales;
    args.sums = call.quant.sums;
    args.k = call.request->k;
    isa_ops<kIsa>().quantize(args, range.begin, range.end);
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * (r.k * 5ull + r.k / 32 * 8);
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const uint32_t k : {32u, 96u, 576u}) {
        OpRequest request;
        request.kind = OpKind::Quantize;
        request.rows = 3;
        request.k = k;
        requests.push_back(request);
    }
    return requests;
}

}  // namespace

void append_quantize(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        KernelEntry entry;
        entry.id = "quantize.row.f32_to_i8." + std::string(isa_name(isa));
        entry.kind = OpKind::Quantize;
        entry.isa = isa_name(isa);
        entry.match = match;
        entry.items = items_rows;
        entry.run = run<constant()>;
        entry.bytes_moved = bytes_moved;
        // Of scale * int8 against the input: half a step of 1/127 of the block's largest value.
        entry.tolerance = {.abs = 0.02, .rel = 0, .nmse = 1e-4};
        entry.test_requests = test_requests;
        table.push_back(entry);
    });
}

}  // namespace strata::cpu
