// A kernel as the registry knows it, and the arguments it is launched with. Backends fill one
// explicit table of KernelEntry each; there is no other list of what a backend can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/state_run.h"
#include "engine/plan/op.h"

namespace strata {

// How a kernel's result may depend on what shares the step with a row.
enum class Determinism : uint8_t {
    RowInvariant,  // a row's bits never depend on other rows, their number, or thread count
    RunInvariant,  // same bits for the same step shape only
};

// |a - ref| <= abs + rel * |ref| against the f64 reference of tests/ops, plus an NMSE bound.
struct Tolerance {
    double abs = 0;
    double rel = 0;
    double nmse = 0;
};

// A weight in the layout that a kernel asked for (KernelEntry::pack) or as in the file.
struct WeightView {
    const std::byte* data = nullptr;  // 64-byte aligned when packed; mapped file otherwise
    uint64_t bytes = 0;
    DType type = DType::None;  // type in the file
    uint32_t n = 0;            // rows (outputs)
    uint32_t k = 0;            // columns (inputs)
    uint32_t experts = 1;      // matrices [n, k], each at expert_bytes behind the one before
    uint64_t expert_bytes = 0;
};

// Where each row of the step stands. All arrays have `rows` entries and outlive the step.
struct RowView {
    uint32_t rows = 0;
    const int32_t* tokens = nullptr;      // [rows]
    const uint32_t* positions = nullptr;  // [rows] absolute position in its sequence
    const uint32_t* sequences = nullptr;  // [rows] index into page_tables
    // page_tables[s * page_table_stride + i] = page that holds positions
    // [i * page_tokens, (i + 1) * page_tokens) of sequence s
    const uint32_t* page_tables = nullptr;
    uint32_t page_table_stride = 0;
    const uint32_t* gather = nullptr;  // [gather_rows] rows whose logits are wanted, ascending
    uint32_t gather_rows = 0;
    // Of models with recurrent layers. Copies of whole states come before the rows, in order; a
    // sequence's number is its slot. Runs are made by the runtime from the rows.
    const StateCopy* copies = nullptr;  // [copy_count]
    uint32_t copy_count = 0;
    const StateRun* runs = nullptr;  // [run_count]
    uint32_t run_count = 0;
};

// Keys and values of one layer. Keys are stored transposed within a page so that scores of
// neighbouring tokens are neighbouring lanes:
//   k: [pages, kv_heads, head_dim, page_tokens]      v: [pages, kv_heads, page_tokens, head_dim]
// Elements are `kv` of the request (F16 or F32). 64-byte aligned.
struct KvView {
    std::byte* k = nullptr;
    std::byte* v = nullptr;
};

// Index keys of one layer (engine/plan/index_layout.h). 64-byte aligned.
struct IndexView {
    std::byte* keys = nullptr;
    std::byte* blocks = nullptr;
};

// Rows rounded to int8: see engine/cpu/quantize.h. Null where the op has none.
struct QuantView {
    int8_t* values = nullptr;  // [rows, k]
    float* scales = nullptr;   // [rows, k / 32]
    int32_t* sums = nullptr;   // [rows, k / 32] sums of the block's halves, int16 each
};

// One operation's part of the recurrent states: slot s has its own at data + s * slot_floats, laid
// out as engine/plan/state_layout.h says.
struct StateView {
    float* data = nullptr;
    uint64_t slot_floats = 0;
};

struct OpCall {
    const OpRequest* request = nullptr;
    uint32_t rows = 0;                // rows of this launch (gather_rows behind GatherRows)
    const float* x = nullptr;         // first f32 input (gate for SwiGlu; k rows for KvAppend)
    const float* y = nullptr;         // second f32 input (up for SwiGlu; v rows for KvAppend)
    float* out = nullptr;             // f32 output; for Add and Rope the tensor changed in place
    QuantView quant;                  // int8 input of Matmul, output of Quantize
    WeightView weight;                // Matmul, Embed
    const float* vector = nullptr;    // RmsNorm gain [head_dim or k], Matmul bias [n]
    const float* vector2 = nullptr;   // DeltaGates rates [heads]
    uint32_t* routing = nullptr;      // of operations of experts (engine/plan/routing.h)
    uint32_t* masks = nullptr;        // Attention, SelectTokens (engine/plan/index_layout.h)
    const uint64_t* ngram = nullptr;  // NgramRows: constants (engine/plan/ngram.h)
    // Rope: [rope_dims / 2] inverse frequencies, then the magnitude of kFeatureRopeMagnitude, f32.
    const float* rope = nullptr;
    float eps = 0;    // RmsNorm
    float scale = 0;  // Attention: 1 / sqrt(head_dim) unless the model says otherwise
                      // Route: what weights are multiplied by
    RowView row;
    KvView kv;
    IndexView index;  // IndexAppend, IndexBlocks, SelectTokens
    StateView state;
    std::byte* scratch = nullptr;  // thread-private, KernelEntry::scratch_bytes(request) bytes
};

// A half-open range of the call's work items; items are independent of each other.
struct WorkRange {
    uint32_t begin = 0;
    uint32_t end = 0;
};

using MatchFn = std::optional<std::string> (*)(const OpRequest&);  // nullopt = yes, else why not
using ItemsFn = uint32_t (*)(const OpCall&);                       // number of work items
using RunFn = void (*)(const OpCall&, WorkRange);                  // computes items [begin, end)
using BytesFn = uint64_t (*)(const OpRequest&);

// Rearranges a weight from the file's layout to the kernel's; null data layout = use the file's.
struct Packing {
    std::string_view id;  // equal ids share one packed copy
    uint64_t (*bytes)(DType, uint32_t n, uint32_t k) = nullptr;
    void (*pack)(const WeightView& from, std::byte* to, WorkRange row_tiles) = nullptr;
    uint32_t tile_rows = 0;  // rows per row tile
};

struct KernelEntry {
    std::string id;  // "matmul.rows16.q4_1_x_i8.avx512vnni": family.algorithm.types.isa
    OpKind kind = OpKind::Add;
    uint32_t features = 0;  // feature bits this kernel accepts
    std::string_view isa;   // "portable", "avx2", "avx512vnni", "neon"
    MatchFn match = nullptr;
    ItemsFn items = nullptr;
    RunFn run = nullptr;  // null: not in this program; such entries are for plans and reports only
    const Packing* packing = nullptr;
    BytesFn scratch_bytes = nullptr;  // per thread; null = none
    BytesFn bytes_moved = nullptr;    // for one launch at request.rows
    Determinism determinism = Determinism::RowInvariant;
    Tolerance tolerance;
    std::vector<OpRequest> (*test_requests)() = nullptr;  // shapes for the generated parity tests
};

}  // namespace strata
