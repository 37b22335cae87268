// Operations on residual streams: Silu, StreamMix, StreamAdd, StreamScores and StreamScale
// (stream_body.h has their arithmetic), and StreamSpread, which copies. `heads` of a request is the
// number of streams. Bytes moved: every operand once, StreamAdd its output twice.
#include <array>
#include <cstring>

#include "engine/cpu/entries.h"
#include "engine/cpu/stream_ops.h"

namespace strata::cpu {
namespace {

template <Isa kIsa>
const StreamOps& stream_ops() {
    if constexpr (!is_compiled(kIsa))
        assert_failed(__FILE__, __LINE__, "stream_ops", "entries of absent code have no launcher");
    else if constexpr (kIsa == Isa::Avx512Vnni)
        return stream_ops_avx512();
    else if constexpr (kIsa == Isa::Avx2)
        return stream_ops_avx2();
    else if constexpr (kIsa == Isa::Neon)
        return stream_ops_neon();
    else
        return stream_ops_portable();
}

// Reason unless `wide` is `heads` times a `narrow` that is not 0.
Refused match_widths(const OpRequest& r, uint64_t wide, uint64_t narrow) {
    if (r.heads == 0) return one_of("heads", "0", "1 and up");
    if (narrow != 0 && wide == narrow * r.heads) return std::nullopt;
    return one_of("k to n",
                  std::to_string(r.k) + " to " + std::to_string(r.n),
                  "widths that differ by the " + std::to_string(r.heads) + " streams");
}

Refused match_widening(const OpRequest& r) {
    return match_widths(r, r.n, r.k);
}
Refused match_narrowing(const OpRequest& r) {
    return match_widths(r, r.k, r.n);
}
Refused match_silu(const OpRequest& r) {
    if (r.heads == 0) return one_of("heads", "0", "1 and up");
    return not_multiple("k", r.k, 1);
}
Refused match_scores(const OpRequest& r) {
    if (const Refused refused = not_multiple("n", r.n, 1)) return refused;
    if (r.n != r.heads) return one_of("n", std::to_string(r.n), "as many as heads");
    return not_multiple("k", r.k, r.heads);
}

StreamArgs args_of(const OpCall& call, uint32_t width) {
    return {call.x, call.y, call.out, call.request->heads, width};
}

template <Isa kIsa>
void run_silu(const OpCall& call, WorkRange range) {
    const SiluArgs args{
        call.x, call.out, call.request->k, 1.0f / static_cast<float>(call.request->heads)};
    stream_ops<kIsa>().silu(args, range.begin, range.end);
}
template <Isa kIsa>
void run_mix(const OpCall& call, WorkRange range) {
    stream_ops<kIsa>().mix(args_of(call, call.request->n), range.begin, range.end);
}
template <Isa kIsa>
void run_add(const OpCall& call, WorkRange range) {
    stream_ops<kIsa>().add(args_of(call, call.request->k), range.begin, range.end);
}
template <Isa kIsa>
void run_scores(const OpCall& call, WorkRange range) {
    const uint32_t width = call.request->k / call.request->heads;
    stream_ops<kIsa>().scores(args_of(call, width), range.begin, range.end);
}
template <Isa kIsa>
void run_scale(const OpCall& call, WorkRange range) {
    stream_ops<kIsa>().scale(args_of(call, call.request->k), range.begin, range.end);
}

void run_spread(const OpCall& call, WorkRange range) {
    const OpRequest& r = *call.request;
    for (uint64_t row = range.begin; row < range.end; ++row) {
        for (uint64_t s = 0; s < r.heads; ++s)
            std::memcpy(call.out + row * r.n + s * r.k, call.x + row * r.k, r.k * sizeof(float));
    }
}

uint64_t bytes_silu(const OpRequest& r) {
    return uint64_t{r.rows} * r.k * 8;
}
uint64_t bytes_mix(const OpRequest& r) {
    return uint64_t{r.rows} * (2ull * r.k + r.n) * 4;
}
uint64_t bytes_add(const OpRequest& r) {
    return uint64_t{r.rows} * (2ull * r.n + r.k + r.heads) * 4;
}
uint64_t bytes_scores(const OpRequest& r) {
    return uint64_t{r.rows} * (2ull * r.k + r.n) * 4;
}
uint64_t bytes_widening(const OpRequest& r) {
    return uint64_t{r.rows} * (uint64_t{r.k} + r.n + r.heads) * 4;
}

// Streams of 67 and of 3 values end in vectors that are not full.
template <OpKind kKind>
std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    for (const auto& [rows, streams, width] :
         {std::array{4u, 4u, 64u}, {3u, 2u, 67u}, {1u, 5u, 3u}, {5u, 1u, 32u}}) {
        OpRequest request;
        request.kind = kKind;
        request.rows = rows;
        request.heads = streams;
        const bool is_wide_input = kKind == OpKind::StreamMix || kKind == OpKind::StreamScores;
        request.k = is_wide_input ? streams * width : width;
        request.n = is_wide_input ? width : streams * width;
        if (kKind == OpKind::StreamScores) request.n = streams;
        if (kKind == OpKind::Silu) request.n = 0;
        requests.push_back(request);
    }
    return requests;
}

struct Launch {
    const char* family;
    MatchFn match;
    RunFn run;
    BytesFn bytes;
    Tolerance tolerance;
};

template <OpKind kKind>
KernelEntry entry_of(Isa isa, const Launch& launch) {
    KernelEntry entry;
    entry.id = std::string(launch.family) + std::string(isa_name(isa));
    entry.kind = kKind;
    entry.isa = isa_name(isa);
    entry.match = launch.match;
    entry.items = items_rows;
    entry.run = launch.run;
    entry.bytes_moved = launch.bytes;
    entry.tolerance = launch.tolerance;
    entry.test_requests = test_requests<kKind>;
    return entry;
}

template <Isa kIsa>
void append(std::vector<KernelEntry>& table) {
    const Tolerance close = {.abs = 1e-6, .rel = 1e-6, .nmse = 1e-13};
    // A sum of products under a root: near 0 the root takes an error of 1e-7 to a hundredfold.
    const Tolerance rooted = {.abs = 2e-5, .rel = 1e-6, .nmse = 1e-10};
    table.push_back(entry_of<OpKind::Silu>(
        kIsa, {"silu.row.f32.", match_silu, run_silu<kIsa>, bytes_silu, close}));
    table.push_back(entry_of<OpKind::StreamMix>(
        kIsa, {"stream_mix.row.f32.", match_narrowing, run_mix<kIsa>, bytes_mix, close}));
    table.push_back(entry_of<OpKind::StreamAdd>(
        kIsa, {"stream_add.row.f32.", match_widening, run_add<kIsa>, bytes_add, close}));
    table.push_back(entry_of<OpKind::StreamScores>(
        kIsa, {"stream_scores.row.f32.", match_scores, run_scores<kIsa>, bytes_scores, rooted}));
    table.push_back(entry_of<OpKind::StreamScale>(
        kIsa, {"stream_scale.row.f32.", match_widening, run_scale<kIsa>, bytes_widening, close}));
}

}  // namespace

void append_streams(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) { append<constant()>(table); });
}

void append_stream_spread(std::vector<KernelEntry>& table) {
    table.push_back(entry_of<OpKind::StreamSpread>(
        Isa::Portable,
        {"stream_spread.copy.f32.", match_widening, run_spread, bytes_widening, Tolerance{}}));
}

}  // namespace strata::cpu
