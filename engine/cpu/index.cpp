// Operations of layers whose rows choose what they attend to: IndexAppend, IndexBlocks and
// SelectTokens (index_body.h has their arithmetic). A row with no more complete blocks than it may
// choose attends to everything; else to the blocks of largest score, of equal ones the lower, and
// to the tokens behind the last complete block. Bytes moved: keys once in and out; each block key
// before a row once.
#include <bit>
#include <cstring>

#include "engine/cpu/entries.h"
#include "engine/plan/type_words.h"

namespace strata::cpu {
namespace {

constexpr uint32_t kDimStep = 16;  // lanes of the widest instruction set

Refused match_index(const OpRequest& r) {
    if (r.kv != DType::F16 && r.kv != DType::F32) return one_of("kv", kv_word(r.kv), "f16, f32");
    if (r.page_tokens != kPage)
        return one_of("page_tokens", std::to_string(r.page_tokens), std::to_string(kPage));
    if (r.block_tokens == 0 || kPage % r.block_tokens != 0)
        return one_of("block_tokens", std::to_string(r.block_tokens), "divisors of a page's 32");
    if (r.head_dim > kIndexDimMax)
        return one_of("head_dim", std::to_string(r.head_dim), "at most 256");
    return not_multiple("head_dim", r.head_dim, kDimStep);
}

Refused match_blocks(const OpRequest& r) {
    if (const Refused refused = match_index(r)) return refused;
    if (r.rope_dims > r.head_dim)
        return one_of("rope_dims", std::to_string(r.rope_dims), "at most head_dim");
    return not_multiple("rope_dims", r.rope_dims, 2);
}

Refused match_select(const OpRequest& r) {
    if (const Refused refused = match_index(r)) return refused;
    if (r.heads == 0 || r.heads > kIndexHeadsMax)
        return one_of("heads", std::to_string(r.heads), "1 to 16");
    if (r.blocks_used == 0) return one_of("blocks_used", "0", "1 and up");
    return not_multiple("mask_words", r.mask_words, 1);
}

IndexArgs index_args(const OpCall& call) {
    IndexArgs args{};
    args.keys = call.index.keys;
    args.blocks = call.index.blocks;
    args.is_f32 = call.request->kv == DType::F32;
    args.head_dim = call.request->head_dim;
    args.block_tokens = call.request->block_tokens;
    args.positions = call.row.positions;
    args.sequences = call.row.sequences;
    args.page_tables = call.row.page_tables;
    args.page_table_stride = call.row.page_table_stride;
    return args;
}

template <Isa kIsa>
void run_append(const OpCall& call, WorkRange range) {
    isa_ops<kIsa>().index_append({index_args(call), call.x}, range.begin, range.end);
}

template <Isa kIsa>
void run_blocks(const OpCall& call, WorkRange range) {
    const bool has_magnitude = (call.request->features & kFeatureRopeMagnitude) != 0;
    const IndexBlocksArgs args{index_args(call),
                               call.vector,
                               call.rope,
                               call.request->rope_dims,
                               (call.request->features & kFeatureRopeNeox) != 0,
                               has_magnitude ? call.rope[call.request->rope_dims / 2] : 1.0f,
                               call.eps};
    isa_ops<kIsa>().index_blocks(args, range.begin, range.end);
}

// What scores that are not below 0 compare by; NaN is above all.
uint32_t key_of(float score) {
    return std::bit_cast<uint32_t>(score);
}

// The largest key that at least `wanted` of the scores reach, bit by bit from the highest.
uint32_t threshold_of(const float* scores, uint32_t count, uint32_t wanted) {
    uint32_t threshold = 0;
    for (uint32_t shift = 32; shift > 0;) {
        shift -= 8;
        uint32_t counts[256] = {};
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t key = key_of(scores[i]);
            const bool is_in = shift == 24 || key >> (shift + 8) == threshold >> (shift + 8);
            if (is_in) ++counts[key >> shift & 255u];
        }
        uint32_t digit = 255;
        while (counts[digit] < wanted) wanted -= counts[digit--];
        threshold |= digit << shift;
    }
    return threshold;
}

void set_tokens(uint32_t* mask, uint32_t first, uint32_t count) {
    const uint32_t bits = count == kPage ? ~0u : (1u << count) - 1;
    mask[first / kPage] |= bits << first % kPage;
}

// Scratch: the scores of a row.
template <Isa kIsa>
void run_select(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    auto* const scores = reinterpret_cast<float*>(call.scratch);
    for (uint32_t row = range.begin; row < range.end; ++row) {
        uint32_t* const mask = call.masks + uint64_t{row} * r.mask_words;
        const uint32_t visible = call.row.positions[row] + 1;
        const uint32_t complete = visible / r.block_tokens;
        const uint32_t words = (visible + kPage - 1) / kPage;  // the others are not read
        if (complete <= r.blocks_used) {
            std::memset(mask, 0xff, words * sizeof(uint32_t));
            mask[words - 1] = ~0u >> (words * kPage - visible);
            continue;
        }
        std::memset(mask, 0, words * sizeof(uint32_t));
        isa_ops<kIsa>().index_scores({index_args(call), call.x, r.heads, scores}, row);
        const uint32_t threshold = threshold_of(scores, complete, r.blocks_used);
        uint32_t above = 0;
        for (uint32_t i = 0; i < complete; ++i) above += key_of(scores[i]) > threshold ? 1 : 0;
        uint32_t ties = r.blocks_used - above;  // the first ones
        for (uint32_t block = 0; block < complete; ++block) {
            const uint32_t key = key_of(scores[block]);
            if (key < threshold || (key == threshold && ties == 0)) continue;
            ties -= key == threshold ? 1 : 0;
            set_tokens(mask, block * r.block_tokens, r.block_tokens);
        }
        const uint32_t tail = visible % r.block_tokens;
        if (tail > 0) set_tokens(mask, visible - tail, tail);
    }
}

uint64_t scratch_select(const OpRequest& r) {
    return uint64_t{r.mask_words} * kPage / r.block_tokens * sizeof(float);
}

uint64_t element_bytes(const OpRequest& r) {
    return dtype_info(r.kv).block_bytes;
}
uint64_t bytes_append(const OpRequest& r) {
    return uint64_t{r.rows} * r.head_dim * (4 + element_bytes(r));
}
uint64_t bytes_blocks(const OpRequest& r) {
    return uint64_t{r.rows} * r.head_dim * element_bytes(r) * (r.block_tokens + 1) / r.block_tokens;
}
// At contexts of half of what a row may have.
uint64_t bytes_select(const OpRequest& r) {
    const uint64_t blocks = uint64_t{r.mask_words} * kPage / r.block_tokens / 2;
    return r.rows * (blocks * r.head_dim * element_bytes(r) + uint64_t{r.heads} * r.head_dim * 4 +
                     r.mask_words * 4ull);
}

template <OpKind kKind>
std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    const struct {
        uint32_t rows, heads, head_dim, block_tokens, blocks_used, features;
    } shapes[] = {{1, 4, 128, 4, 5, kFeatureRopeNeox},
                  {19, 2, 32, 4, 3, kFeatureRopeNeox},
                  {24, 1, 16, 8, 2, kFeatureRopeMagnitude},
                  {21, 3, 48, 2, 1, kFeatureRopeNeox | kFeatureRopeFactors},
                  {9, 4, 64, 32, 2, 0}};
    for (const DType kv : {DType::F16, DType::F32}) {
        for (const auto& shape : shapes) {
            OpRequest request;
            request.kind = kKind;
            request.kv = kv;
            request.rows = shape.rows;
            request.sequences = 3;
            request.head_dim = request.k = shape.head_dim;
            request.page_tokens = kPage;
            request.block_tokens = shape.block_tokens;
            if (kKind == OpKind::IndexBlocks) {
                request.rope_dims = shape.head_dim / 2;
                request.features = shape.features;
            }
            if (kKind == OpKind::SelectTokens) {
                request.heads = shape.heads;
                request.k = shape.heads * shape.head_dim;
                request.blocks_used = shape.blocks_used;
                request.mask_words = 8;
            }
            requests.push_back(request);
        }
    }
    return requests;
}

template <Isa kIsa, OpKind kKind>
KernelEntry entry_of(const char* family, MatchFn match, RunFn run, BytesFn bytes) {
    KernelEntry entry;
    entry.id = std::string(family) + std::string(isa_name(kIsa));
    entry.kind = kKind;
    entry.isa = isa_name(kIsa);
    entry.match = match;
    entry.items = items_rows;
    entry.run = run;
    entry.bytes_moved = bytes;
    entry.test_requests = test_requests<kKind>;
    return entry;
}

template <Isa kIsa>
void append(std::vector<KernelEntry>& table) {
    table.push_back(entry_of<kIsa, OpKind::IndexAppend>(
        "index_append.page32.f16_f32.", match_index, run_append<kIsa>, bytes_append));
    KernelEntry blocks = entry_of<kIsa, OpKind::IndexBlocks>(
        "index_blocks.page32.f16_f32.", match_blocks, run_blocks<kIsa>, bytes_blocks);
    blocks.features = kFeatureRopeNeox | kFeatureRopeFactors | kFeatureRopeMagnitude;
    blocks.tolerance = {.abs = 2e-6, .rel = 1e-3, .nmse = 1e-6};  // of f16: half of 2^-10
    table.push_back(blocks);
    KernelEntry select = entry_of<kIsa, OpKind::SelectTokens>(
        "select_tokens.page32.f16_f32.", match_select, run_select<kIsa>, bytes_select);
    select.scratch_bytes = scratch_select;
    table.push_back(select);
}

}  // namespace

void append_index(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) { append<constant()>(table); });
}

}  // namespace strata::cpu
