// KvAppend: writes k (x) and v (y) rows [R, kv_heads * head_dim] into the pages at their positions,
// keys transposed (kernel.h, KvView). Bytes moved: each row once in, once out.
#include "engine/cpu/paged.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    return match_pages(request, 8);
}

template <Isa kIsa>
void run(const OpCall& call, WorkRange range) {
    const KvAppendArgs args{kv_args(call), call.x, call.y};
    isa_ops<kIsa>().kv_append(args, range.begin, range.end);
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.kv_heads * r.head_dim * 2 * (4 + dtype_info(r.kv).block_bytes);
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const DType kv : {DType::F16, DType::F32}) {
        for (const uint32_t head_dim : {64u, 40u, 16u}) {
            OpRequest request;
            request.kind = OpKind::KvAppend;
            request.kv = kv;
            request.rows = 9;
            request.sequences = 3;
            request.kv_heads = 2;
            request.head_dim = head_dim;
            request.k = request.kv_heads * head_dim;
            request.page_tokens = kPage;
            requests.push_back(request);
        }
    }
    return requests;
}

}  // namespace

void append_kv_append(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        KernelEntry entry;
        entry.id = "kv_append.page32.f16_f32." + std::string(isa_name(isa));
        entry.kind = OpKind::KvAppend;
        entry.isa = isa_name(isa);
        entry.match = match;
        entry.items = items_rows;
        entry.run = run<constant()>;
        entry.bytes_moved = bytes_moved;
        entry.tolerance = {.abs = 0, .rel = 0, .nmse = 0};  // f16 rounds to nearest even, exactly
        entry.test_requests = test_requests;
        table.push_back(entry);
    });
}

}  // namespace strata::cpu
