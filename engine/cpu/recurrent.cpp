// Operations of recurrent layers: ShortConv, DeltaRule (recurrent_body.h has their arithmetic,
// engine/plan/state_layout.h the layout of their states), L2Norm and SigmoidGate. States are read
// and written in place; rows of one sequence are one run. Bytes moved: each row once in and out,
// and for each run its part of the state.
#include "engine/cpu/entries.h"
#include "engine/cpu/recurrent_ops.h"
#include "engine/plan/state_layout.h"
#include "engine/quant/dequantize.h"

namespace strata::cpu {
namespace {

static_assert(kDeltaColumns == kStateColumns, "the kernel's blocks are those of the layout");

template <Isa kIsa>
const RecurrentOps& recurrent_ops() {
    if constexpr (!is_compiled(kIsa))
        assert_failed(
            __FILE__, __LINE__, "recurrent_ops", "entries of absent code have no launcher");
    else if constexpr (kIsa == Isa::Avx512Vnni)
        return recurrent_ops_avx512();
    else if constexpr (kIsa == Isa::Avx2)
        return recurrent_ops_avx2();
    else if constexpr (kIsa == Isa::Neon)
        return recurrent_ops_neon();
    else
        return recurrent_ops_portable();
}

RunArgs run_args(const OpCall& call) {
    return {call.state.data, call.state.slot_floats, call.row.runs};
}

// --- ShortConv

Refused match_conv(const OpRequest& r) {
    if (r.weight != DType::F32 && r.weight != DType::F16 && r.weight != DType::BF16)
        return one_of("weight", dtype_name(r.weight), "f32, f16, bf16");
    if (r.taps < 1 || r.taps > kConvTapsMax)
        return one_of("taps", std::to_string(r.taps), "1 to " + std::to_string(kConvTapsMax));
    if (conv_dilation(r) == 0) return one_of("dilation", "0", "1 and up");
    return not_multiple("n", r.n, 1);
}

uint32_t items_conv(const OpCall& call) {
    return call.row.run_count * ((call.request->n + kConvBlock - 1) / kConvBlock);
}

template <Isa kIsa>
void run_conv(const OpCall& call, WorkRange range) {
    ConvArgs args{};
    args.run = run_args(call);
    args.x = call.x;
    args.taps = reinterpret_cast<const float*>(call.weight.data);
    args.out = call.out;
    args.channels = call.request->n;
    args.tap_count = call.request->taps;
    args.dilation = conv_dilation(*call.request);
    args.ring_rows = conv_ring_rows(*call.request);
    recurrent_ops<kIsa>().short_conv(args, range.begin, range.end);
}

uint64_t bytes_conv(const OpRequest& r) {
    return (uint64_t{r.rows} * 2 + r.taps) * r.n * 4 + 2 * r.sequences * op_state_floats(r) * 4;
}

uint64_t taps_bytes(DType, uint32_t n, uint32_t k) {
    return uint64_t{n} * k * sizeof(float);
}

// [n channels, k taps] of the file to f32 [k, n]: one tap of neighbouring channels is a vector.
void pack_taps(const WeightView& from, std::byte* to, WorkRange channels) {
    auto* const taps = reinterpret_cast<float*>(to);
    const uint64_t row_bytes = dtype_bytes(from.type, from.k);
    std::vector<float> row(from.k);
    for (uint32_t channel = channels.begin; channel < channels.end; ++channel) {
        dequantize_row(from.type, from.data + channel * row_bytes, row.data(), from.k);
        for (uint32_t tap = 0; tap < from.k; ++tap)
            taps[uint64_t{tap} * from.n + channel] = row[tap];
    }
}

constexpr Packing kTapsPacking = {"conv_taps", taps_bytes, pack_taps, 1};

std::vector<OpRequest> test_conv() {
    std::vector<OpRequest> requests;
    const struct {
        DType weight;
        uint32_t rows, n, taps, undo, dilation;
    } shapes[] = {{DType::F32, 1, 320, 4, 0, 0},
                  {DType::F32, 7, 67, 4, 0, 0},
                  {DType::F16, 9, 259, 3, 2, 0},
                  {DType::BF16, 4, 48, 1, 0, 0},
                  {DType::F32, 12, 33, 8, 3, 0},
                  {DType::F16, 13, 67, 4, 0, 3},
                  {DType::F32, 12, 33, 4, 2, 3}};
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::ShortConv;
        request.weight = shape.weight;
        request.rows = shape.rows;
        request.sequences = 3;
        request.n = request.k = shape.n;
        request.taps = shape.taps;
        request.undo = shape.undo;
        request.dilation = shape.dilation;
        if (shape.dilation != 0) request.features = kFeatureDilated;
        requests.push_back(request);
    }
    return requests;
}

// --- DeltaRule

Refused match_delta(const OpRequest& r) {
    if (const Refused refused = not_multiple("head_dim", r.head_dim, kDeltaColumns)) return refused;
    if (r.head_dim > kDeltaHeadDimMax)
        return one_of(
            "head_dim", std::to_string(r.head_dim), "at most " + std::to_string(kDeltaHeadDimMax));
    if (r.kv_heads == 0) return one_of("kv_heads", "0", "1 and up");
    return not_multiple("heads", r.heads, r.kv_heads);
}

uint32_t items_delta(const OpCall& call) {
    return call.row.run_count * call.request->heads * (call.request->head_dim / kDeltaColumns);
}

uint64_t scratch_delta(const OpRequest& r) {
    return uint64_t{r.head_dim} * kDeltaColumns * sizeof(float);
}

template <Isa kIsa>
void run_delta(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    DeltaArgs args{};
    args.run = run_args(call);
    args.x = call.x;
    args.gates = call.y;
    args.out = call.out;
    args.heads = r.heads;
    args.kv_heads = r.kv_heads;
    args.dim = r.head_dim;
    args.is_tiled = (r.features & kFeatureTiledHeads) != 0;
    args.scale = call.scale;
    args.log_at = uint64_t{r.heads} * r.head_dim * r.head_dim;
    args.log_row_floats = delta_log_floats(r);
    args.log_rows = r.undo;
    args.scratch = reinterpret_cast<float*>(call.scratch);
    recurrent_ops<kIsa>().delta_rule(args, range.begin, range.end);
}

uint64_t bytes_delta(const OpRequest& r) {
    const uint64_t row = r.k + 2ull * r.heads + r.n;
    return r.rows * row * 4 + 2ull * r.sequences * op_state_floats(r) * 4;
}

std::vector<OpRequest> test_delta() {
    std::vector<OpRequest> requests;
    const struct {
        uint32_t rows, heads, kv_heads, head_dim, undo, features;
    } shapes[] = {{1, 2, 1, 128, 0, kFeatureTiledHeads},
                  {9, 6, 2, 32, 0, kFeatureTiledHeads},
                  {10, 6, 2, 32, 0, 0},
                  {11, 4, 4, 48, 2, kFeatureTiledHeads},
                  {12, 4, 1, 16, 3, 0},
                  {4, 2, 2, 256, 1, 0}};
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::DeltaRule;
        request.rows = shape.rows;
        request.sequences = 3;
        request.heads = shape.heads;
        request.kv_heads = shape.kv_heads;
        request.head_dim = shape.head_dim;
        request.n = shape.heads * shape.head_dim;
        request.k = 2 * shape.kv_heads * shape.head_dim + request.n;
        request.undo = shape.undo;
        request.features = shape.features;
        requests.push_back(request);
    }
    return requests;
}

// --- L2Norm, SigmoidGate

Refused match_l2(const OpRequest& r) {
    if (r.heads == 0 || r.head_dim == 0) return std::string("heads or head_dim is 0");
    if (uint64_t{r.heads} * r.head_dim > r.k)
        return one_of(
            "heads * head_dim", std::to_string(uint64_t{r.heads} * r.head_dim), "at most k");
    return std::nullopt;
}

template <Isa kIsa>
void run_l2(const OpCall& call, WorkRange range) {
    const L2NormArgs args{call.out, call.request->k, call.request->heads, call.request->head_dim};
    recurrent_ops<kIsa>().l2_norm(args, range.begin, range.end);
}

uint64_t bytes_l2(const OpRequest& r) {
    return uint64_t{r.rows} * r.heads * r.head_dim * 8;
}

std::vector<OpRequest> test_l2() {
    std::vector<OpRequest> requests;
    for (const uint32_t dim : {128u, 40u, 3u}) {
        OpRequest request;
        request.kind = OpKind::L2Norm;
        request.rows = 4;
        request.heads = 4;
        request.head_dim = dim;
        request.k = 6 * dim;
        requests.push_back(request);
    }
    return requests;
}

Refused match_gate(const OpRequest& r) {
    return not_multiple("k", r.k, 1);
}

template <Isa kIsa>
void run_gate(const OpCall& call, WorkRange range) {
    recurrent_ops<kIsa>().sigmoid_gate(
        {call.x, call.y, call.out, call.request->k}, range.begin, range.end);
}

uint64_t bytes_gate(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 12;
}

std::vector<OpRequest> test_gate() {
    std::vector<OpRequest> requests;
    for (const uint32_t k : {64u, 67u, 3u}) {
        OpRequest request;
        request.kind = OpKind::SigmoidGate;
        request.rows = 4;
        request.k = k;
        requests.push_back(request);
    }
    return requests;
}

template <Isa kIsa>
KernelEntry entry_of(const char* family, OpKind kind) {
    KernelEntry entry;
    entry.id = std::string(family) + "." + std::string(isa_name(kIsa));
    entry.kind = kind;
    entry.isa = isa_name(kIsa);
    return entry;
}

template <Isa kIsa>
void append(std::vector<KernelEntry>& table) {
    KernelEntry conv = entry_of<kIsa>("short_conv.ring.f32", OpKind::ShortConv);
    conv.features = kFeatureDilated;
    conv.match = match_conv;
    conv.items = items_conv;
    conv.run = run_conv<kIsa>;
    conv.packing = &kTapsPacking;
    conv.bytes_moved = bytes_conv;
    conv.tolerance = {.abs = 2e-6, .rel = 2e-6, .nmse = 1e-12};
    conv.test_requests = test_conv;
    table.push_back(conv);

    KernelEntry delta = entry_of<kIsa>("delta_rule.token_by_token.f32", OpKind::DeltaRule);
    delta.features = kFeatureTiledHeads;
    delta.match = match_delta;
    delta.items = items_delta;
    delta.run = run_delta<kIsa>;
    delta.scratch_bytes = scratch_delta;
    delta.bytes_moved = bytes_delta;
    // Sums over head_dim products of a state that takes in one f32 rounding per token.
    delta.tolerance = {.abs = 5e-6, .rel = 2e-5, .nmse = 1e-11};
    delta.test_requests = test_delta;
    table.push_back(delta);

    KernelEntry norm = entry_of<kIsa>("l2_norm.row.f32", OpKind::L2Norm);
    norm.match = match_l2;
    norm.items = items_rows;
    norm.run = run_l2<kIsa>;
    norm.bytes_moved = bytes_l2;
    norm.tolerance = {.abs = 1e-6, .rel = 2e-6, .nmse = 1e-12};
    norm.test_requests = test_l2;
    table.push_back(norm);

    KernelEntry gate = entry_of<kIsa>("sigmoid_gate.row.f32", OpKind::SigmoidGate);
    gate.match = match_gate;
    gate.items = items_rows;
    gate.run = run_gate<kIsa>;
    gate.bytes_moved = bytes_gate;
    gate.tolerance = {.abs = 1e-6, .rel = 1e-6, .nmse = 1e-13};
    gate.test_requests = test_gate;
    table.push_back(gate);
}

}  // namespace

void append_recurrent(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) { append<constant()>(table); });
}

}  // namespace strata::cpu
