// Embed: token ids [R] -> rows of the embedding table [R, n], decoded from the file's layout.
// Bytes moved: one weight row and one output row per token.
#include "engine/base/assert.h"
#include "engine/cpu/entries.h"
#include "engine/cpu/weight_types.h"
#include "engine/quant/dequantize.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    if (!can_dequantize(request.weight))
        return one_of("weight", dtype_name(request.weight), "types that have a decoder");
    return not_multiple("n", request.n, dtype_info(request.weight).block_elements);
}

// The weight view of a table: n = vocabulary rows, k = width of a row.
void run(const OpCall& call, WorkRange range) {
    const uint32_t width = call.weight.k;
    const uint64_t row_bytes = dtype_bytes(call.weight.type, width);
    for (uint32_t row = range.begin; row < range.end; ++row) {
        const int32_t token = call.row.tokens[row];
        STRATA_ASSERT(token >= 0 && static_cast<uint32_t>(token) < call.weight.n,
                      "token ids are checked when a request is admitted");
        const std::byte* from = call.weight.data + static_cast<uint64_t>(token) * row_bytes;
        dequantize_row(call.weight.type, from, call.out + uint64_t{row} * width, width);
    }
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * (dtype_bytes(r.weight, r.n) + uint64_t{r.n} * 4);
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    const auto append = [&]<DType kType>() {
        const uint32_t block = dtype_info(kType).block_elements;
        OpRequest request;
        request.kind = OpKind::Embed;
        request.weight = kType;
        request.rows = 5;
        request.n = block == 1 ? 67 : 3 * block;
        request.k = 41;
        requests.push_back(request);
    };
    FloatTypes::each(append);
    PackedTypes::each(append);
    TileTypes::each(append);
    return requests;
}

}  // namespace

void append_embed(std::vector<KernelEntry>& table) {
    KernelEntry entry;
    entry.id = "embed.decode_row.any.portable";
    entry.kind = OpKind::Embed;
    entry.isa = isa_name(Isa::Portable);
    entry.match = match;
    entry.items = items_rows;
    entry.run = run;
    entry.bytes_moved = bytes_moved;
    entry.tolerance = {.abs = 0, .rel = 1e-6, .nmse = 1e-13};
    entry.test_requests = test_requests;
    table.push_back(entry);
}

}  // namespace strata::cpu
