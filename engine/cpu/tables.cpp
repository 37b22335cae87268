// Tables of which a step reads a few rows: NgramRows finds the rows (ngram.h has the hash),
// FetchRows asks the system for them, so that they are on their way while the layers before the
// table run, TableRows decodes them. The table stays in the mapped file and is never read as a
// whole. Bytes moved: a table row for each head of a token, and its values.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "engine/cpu/entries.h"
#include "engine/plan/ngram.h"
#include "engine/plan/state_layout.h"
#include "engine/quant/dequantize.h"

namespace strata::cpu {
namespace {

Refused match_table(const OpRequest& r) {
    if (r.weight == DType::None || !can_dequantize(r.weight))
        return one_of("weight", dtype_name(r.weight), "types that can be decoded");
    if (r.heads == 0) return one_of("heads", "0", "1 and up");
    return not_multiple("head_dim", r.head_dim, dtype_info(r.weight).block_elements);
}

// --- NgramRows

Refused match_ngram(const OpRequest& r) {
    if (r.taps < 2 || r.taps > kNgramTokensMax)
        return one_of("taps", std::to_string(r.taps), "2 to " + std::to_string(kNgramTokensMax));
    if (const Refused refused = not_multiple("heads", r.heads, r.taps - 1)) return refused;
    if (r.n != r.heads) return one_of("n", std::to_string(r.n), "as many as heads");
    return std::nullopt;
}

uint32_t items_runs(const OpCall& call) {
    return call.row.run_count;
}

// Token `back` rows before row `row` of the run, or `eos` before the sequence.
uint64_t token_before(const OpCall& call,
                      const StateRun& run,
                      const uint32_t* ring,
                      uint32_t row,
                      uint32_t back,
                      uint64_t eos) {
    if (back > run.position + row) return eos;
    if (back <= row) return static_cast<uint32_t>(call.row.tokens[run.row + row - back]);
    return ring[(run.position + row - back) % ngram_ring_rows(*call.request)];
}

void run_ngram(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    const NgramHash hash = ngram_view(call.ngram, r.taps, r.heads);
    const uint32_t ring_rows = ngram_ring_rows(r);
    auto* const out = reinterpret_cast<uint32_t*>(call.out);
    for (uint32_t item = range.begin; item < range.end; ++item) {
        const StateRun& run = call.row.runs[item];
        auto* const ring =
            reinterpret_cast<uint32_t*>(call.state.data + run.slot * call.state.slot_floats);
        for (uint32_t row = 0; row < run.rows; ++row) {
            uint64_t context[kNgramTokensMax];
            context[0] = static_cast<uint32_t>(call.row.tokens[run.row + row]);
            bool is_cut = false;
            for (uint32_t back = 1; back < r.taps; ++back) {
                context[back] =
                    is_cut ? hash.eos : token_before(call, run, ring, row, back, hash.eos);
                is_cut = is_cut || context[back] == hash.eos;
            }
            hash.rows(context, out + uint64_t{run.row + row} * r.heads);
        }
        const uint32_t kept = run.rows < ring_rows ? run.rows : ring_rows;
        for (uint32_t row = run.rows - kept; row < run.rows; ++row) {
            ring[(run.position + row) % ring_rows] =
                static_cast<uint32_t>(call.row.tokens[run.row + row]);
        }
    }
}

uint64_t bytes_ngram(const OpRequest& r) {
    return uint64_t{r.rows} * (1 + r.heads) * 4 + 2 * r.sequences * op_state_floats(r) * 4;
}

// --- FetchRows, TableRows

Refused match_rows(const OpRequest& r) {
    if (const Refused refused = match_table(r)) return refused;
    if (uint64_t{r.heads} * r.head_dim == r.n) return std::nullopt;
    return one_of("n", std::to_string(r.n), "heads * head_dim");
}

uint32_t items_heads(const OpCall& call) {
    return call.rows * call.request->heads;
}

// Starts reading the pages of each row; a hint, whose failure costs time only. An item of its own
// for each row of the table: where they are not in memory, asking takes longer than all else.
void run_fetch(const OpCall& call, WorkRange range) {
    const WeightView& table = call.weight;
    const uint64_t row_bytes = dtype_bytes(table.type, table.k);
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const auto* const rows = reinterpret_cast<const uint32_t*>(call.x);
    for (uint64_t item = range.begin; item < range.end; ++item) {
        const auto begin = reinterpret_cast<uintptr_t>(table.data + rows[item] * row_bytes);
        const uintptr_t first = begin & ~(page - 1);
        (void)madvise(reinterpret_cast<void*>(first), begin + row_bytes - first, MADV_WILLNEED);
    }
}

uint64_t bytes_fetch(const OpRequest& r) {
    return uint64_t{r.rows} * r.heads * dtype_bytes(r.weight, r.head_dim);
}

void run_rows(const OpCall& call, WorkRange range) {
    const WeightView& table = call.weight;
    const uint64_t row_bytes = dtype_bytes(table.type, table.k);
    const auto* const rows = reinterpret_cast<const uint32_t*>(call.x);
    for (uint64_t item = range.begin; item < range.end; ++item) {
        STRATA_ASSERT(rows[item] < table.n, "offsets and sizes of the heads lie in the table");
        dequantize_row(
            table.type, table.data + rows[item] * row_bytes, call.out + item * table.k, table.k);
    }
}

uint64_t bytes_rows(const OpRequest& r) {
    return uint64_t{r.rows} * r.heads * (dtype_bytes(r.weight, r.head_dim) + 4 * r.head_dim + 4);
}

OpRequest table_request(OpKind kind, DType weight, uint32_t rows, uint32_t heads, uint32_t width) {
    OpRequest request;
    request.kind = kind;
    request.weight = weight;
    request.rows = rows;
    request.heads = heads;
    request.head_dim = width;
    request.k = 521;
    request.n = heads * width;
    return request;
}

std::vector<OpRequest> test_ngram() {
    std::vector<OpRequest> requests;
    const struct {
        uint32_t rows, tokens, heads, undo;
    } shapes[] = {{1, 3, 16, 0}, {9, 3, 4, 0}, {12, 3, 4, 3}, {8, 2, 1, 0}, {11, 5, 8, 2}};
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::NgramRows;
        request.rows = shape.rows;
        request.sequences = 3;
        request.n = request.heads = shape.heads;
        request.taps = shape.tokens;
        request.undo = shape.undo;
        requests.push_back(request);
    }
    return requests;
}

template <OpKind kKind>
std::vector<OpRequest> test_rows() {
    std::vector<OpRequest> requests;
    for (const DType type :
         {DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::Q5_K}) {
        const uint32_t block = dtype_info(type).block_elements;
        requests.push_back(table_request(kKind, type, 3, 4, block == 1 ? 7 : block));
        requests.push_back(table_request(kKind, type, 1, 3, block == 1 ? 160 : 3 * block));
    }
    return requests;
}

}  // namespace

void append_tables(std::vector<KernelEntry>& table) {
    KernelEntry ngram;
    ngram.id = "ngram_rows.hash.any.portable";
    ngram.kind = OpKind::NgramRows;
    ngram.isa = isa_name(Isa::Portable);
    ngram.match = match_ngram;
    ngram.items = items_runs;
    ngram.run = run_ngram;
    ngram.bytes_moved = bytes_ngram;
    ngram.test_requests = test_ngram;
    table.push_back(ngram);

    KernelEntry fetch;
    fetch.id = "fetch_rows.madvise.any.portable";
    fetch.kind = OpKind::FetchRows;
    fetch.isa = isa_name(Isa::Portable);
    fetch.match = match_rows;
    fetch.items = items_heads;
    fetch.run = run_fetch;
    fetch.bytes_moved = bytes_fetch;
    fetch.test_requests = test_rows<OpKind::FetchRows>;
    table.push_back(fetch);

    KernelEntry rows;
    rows.id = "table_rows.decode_row.any.portable";
    rows.kind = OpKind::TableRows;
    rows.isa = isa_name(Isa::Portable);
    rows.match = match_rows;
    rows.items = items_heads;
    rows.run = run_rows;
    rows.bytes_moved = bytes_rows;
    rows.tolerance = {.abs = 0, .rel = 1e-6, .nmse = 1e-13};
    rows.test_requests = test_rows<OpKind::TableRows>;
    table.push_back(rows);
}

}  // namespace strata::cpu
