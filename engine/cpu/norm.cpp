// RmsNorm: x / sqrt(mean(x^2) + eps) * gain over each row [k], or (kFeatureGrouped) over each
// group of head_dim with one gain [head_dim] for all or (kFeatureGroupGain) gains [k]; and
// RmsNormQuantize, which rounds the result to int8 as Quantize would, without writing it. Bytes
// moved: each row once in, once out.
#include "engine/base/assert.h"
#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

uint32_t group_of(const OpRequest& request) {
    return (request.features & kFeatureGrouped) != 0 ? request.head_dim : request.k;
}

Refused match_norm(const OpRequest& request) {
    if (request.act != DType::F32) return one_of("act", dtype_name(request.act), "f32");
    if (group_of(request) == 0) return one_of("head_dim", "0", "1 and up");
    return not_multiple("k", request.k, group_of(request));
}

Refused match_fused(const OpRequest& request) {
    if (const Refused refused = match_norm(request)) return refused;
    return not_multiple("k", request.k, 32);
}

NormArgs norm_args(const OpCall& call) {
    NormArgs args{};
    args.x = call.x;
    args.gain = call.vector;
    args.out = call.out;
    args.k = call.request->k;
    args.group = group_of(*call.request);
    args.gain_step = (call.request->features & kFeatureGroupGain) != 0 ? args.group : 0;
    args.eps = call.eps;
    return args;
}

template <Isa kIsa>
void run_norm(const OpCall& call, WorkRange range) {
    isa_ops<kIsa>().rms_norm(norm_args(call), range.begin, range.end);
}

template <Isa kIsa>
void run_fused(const OpCall& call, WorkRange range) {
    NormArgs norm = norm_args(call);
    norm.out = reinterpret_cast<float*>(call.scratch);
    QuantizeArgs quantize{};
    quantize.values = call.quant.values;
    quantize.scales = call.quant.scales;
    quantize.sums = call.quant.sums;
    quantize.k = call.request->k;
    isa_ops<kIsa>().rms_norm_quantize(norm, quantize, range.begin, range.end);
}

uint64_t scratch_fused(const OpRequest& r) {
    return uint64_t{r.k} * sizeof(float);
}
uint64_t bytes_norm(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 8;
}
uint64_t bytes_fused(const OpRequest& r) {
    return uint64_t{r.rows} * (r.k * 5ull + r.k / 32 * 8);
}

OpRequest shape(OpKind kind, uint32_t rows, uint32_t k, uint32_t head_dim, uint32_t more = 0) {
    OpRequest request;
    request.kind = kind;
    request.rows = rows;
    request.k = k;
    if (head_dim != 0) {
        request.head_dim = head_dim;
        request.heads = k / head_dim;
        request.features = kFeatureGrouped | more;
    }
    return request;
}

std::vector<OpRequest> test_norm() {
    return {shape(OpKind::RmsNorm, 1, 576, 0),
            shape(OpKind::RmsNorm, 5, 67, 0),
            shape(OpKind::RmsNorm, 3, 3 * 40, 40),
            shape(OpKind::RmsNorm, 3, 4 * 67, 67, kFeatureGroupGain)};
}

std::vector<OpRequest> test_fused() {
    return {shape(OpKind::RmsNormQuantize, 1, 576, 0),
            shape(OpKind::RmsNormQuantize, 5, 96, 0),
            shape(OpKind::RmsNormQuantize, 3, 4 * 40, 40),
            shape(OpKind::RmsNormQuantize, 3, 4 * 40, 40, kFeatureGroupGain)};
}

}  // namespace

void append_norm(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        KernelEntry entry;
        entry.id = "rms_norm.row.f32." + std::string(isa_name(isa));
        entry.kind = OpKind::RmsNorm;
        entry.features = kFeatureGrouped | kFeatureGroupGain;
        entry.isa = isa_name(isa);
        entry.match = match_norm;
        entry.items = items_rows;
        entry.run = run_norm<constant()>;
        entry.bytes_moved = bytes_norm;
        entry.tolerance = {.abs = 1e-6, .rel = 2e-6, .nmse = 1e-12};
        entry.test_requests = test_norm;
        table.push_back(entry);

        entry.id = "rms_norm_quantize.row.f32_to_i8." + std::string(isa_name(isa));
        entry.kind = OpKind::RmsNormQuantize;
        entry.match = match_fused;
        entry.run = run_fused<constant()>;
        entry.scratch_bytes = scratch_fused;
        entry.bytes_moved = bytes_fused;
        // Of scale * int8 against the unrounded norm: half a step of 1/127 of the largest value,
        // which a gain near 3 takes to 10.
        entry.tolerance = {.abs = 0.04, .rel = 0, .nmse = 5e-4};
        entry.test_requests = test_fused;
        table.push_back(entry);
    });
}

}  // namespace strata::cpu
