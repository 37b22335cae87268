// Attention: paged, causal, grouped query heads; q [R, heads * head_dim] -> the same shape. The
// arithmetic is described in attention_body.h.
#include "engine/cpu/paged.h"

namespace strata::cpu {
namespace {

// Neighbouring rows of a prompt see nearly the same pages, so a work item takes several rows while
// these are in cache. A decode step has few rows, which are better spread over threads.
constexpr uint32_t kBlockRows = 8;
constexpr uint32_t kGroupMax = 64;

uint32_t block_rows(uint32_t rows) {
    return rows <= 2 * kBlockRows ? 1 : kBlockRows;
}

template <uint32_t kStep>
Refused match(const OpRequest& request) {
    if (const Refused refused = match_pages(request, kStep)) return refused;
    if (const Refused refused = not_multiple("heads", request.heads, request.kv_heads))
        return refused;
    if ((request.features & kFeatureSelected) != 0 && request.mask_words == 0)
        return one_of("mask_words", "0", "1 and up");
    if (request.heads / request.kv_heads > kGroupMax)
        return one_of("heads per kv head",
                      std::to_string(request.heads / request.kv_heads),
                      "at most " + std::to_string(kGroupMax));
    return std::nullopt;
}

uint32_t items(const OpCall& call) {
    const uint32_t rows = block_rows(call.rows);
    return (call.rows + rows - 1) / rows * call.request->kv_heads;
}

template <Isa kIsa>
void run(const OpCall& call, WorkRange range) {
    AttentionArgs args{};
    args.kv = kv_args(call);
    args.q = call.x;
    args.out = call.out;
    args.rows = call.rows;
    args.heads = call.request->heads;
    args.block_rows = block_rows(call.rows);
    args.scale = call.scale;
    args.scratch = reinterpret_cast<float*>(call.scratch);
    args.masks = (call.request->features & kFeatureSelected) != 0 ? call.masks : nullptr;
    args.mask_words = call.request->mask_words;
    isa_ops<kIsa>().attention(args, range.begin, range.end);
}

// Queries' scaled values, accumulators, sums and maximums, and one tile of weights.
uint64_t scratch_bytes(const OpRequest& r) {
    const uint64_t queries = uint64_t{kBlockRows} * (r.heads / r.kv_heads);
    const uint64_t floats = queries * (2ull * r.head_dim + kPage + 1) + kQueryTileMax * kPage;
    return floats * sizeof(float);
}

// At a context of one page per row of the request, the least that a step can read.
uint64_t bytes_moved(const OpRequest& r) {
    const uint64_t element = dtype_info(r.kv).block_bytes;
    const uint64_t page = uint64_t{r.kv_heads} * r.head_dim * kPage * element * 2;
    return r.rows * (page + uint64_t{r.heads} * r.head_dim * 8);
}

OpRequest shape(DType kv, uint32_t rows, uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
    OpRequest request;
    request.kind = OpKind::Attention;
    request.kv = kv;
    request.rows = rows;
    request.sequences = 3;
    request.heads = heads;
    request.kv_heads = kv_heads;
    request.head_dim = head_dim;
    request.k = heads * head_dim;
    request.n = request.k;
    request.page_tokens = kPage;
    return request;
}

template <uint32_t kStep>
std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const DType kv : {DType::F16, DType::F32}) {
        requests.push_back(shape(kv, 1, 9, 3, 64));
        requests.push_back(shape(kv, 40, 8, 1, 128));
        requests.push_back(shape(kv, 21, 2, 2, 256));
        requests.push_back(shape(kv, 20, 8, 2, 64));
        requests.back().features = kFeatureSelected;
        requests.back().mask_words = 8;
        if (kStep == 8) {
            requests.push_back(shape(kv, 19, 4, 2, 40));
            requests.push_back(shape(kv, 3, 4, 2, 16));
        }
    }
    return requests;
}

template <Isa kIsa>
KernelEntry make_entry() {
    // 16 lanes do not divide every multiple of 8; those heads go to the next instruction set.
    constexpr uint32_t kStep = kIsa == Isa::Avx512Vnni ? 32 : 8;
    KernelEntry entry;
    entry.id = "attention.online_softmax.page32." + std::string(isa_name(kIsa));
    entry.kind = OpKind::Attention;
    entry.features = kFeatureSelected;
    entry.isa = isa_name(kIsa);
    entry.match = match<kStep>;
    entry.items = items;
    entry.run = run<kIsa>;
    entry.scratch_bytes = scratch_bytes;
    entry.bytes_moved = bytes_moved;
    entry.tolerance = {.abs = 3e-6, .rel = 1e-5, .nmse = 1e-11};
    entry.test_requests = test_requests<kStep>;
    return entry;
}

}  // namespace

void append_attention(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) { table.push_back(make_entry<constant()>()); });
}

}  // namespace strata::cpu
