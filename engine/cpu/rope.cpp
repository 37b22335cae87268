// Rope: rotates the first rope_dims of each head of x [R, heads * head_dim] in place by
// position * frequency; pairs (2i, 2i+1), or (i, i + rope_dims/2) with kFeatureRopeNeox. With
// kFeatureRopeFactors the caller has divided the frequencies by the file's factors; the kernel sees
// frequencies only. With kFeatureRopeMagnitude rotated elements are multiplied by the constant
// behind the frequencies. Bytes moved: each row once in, once out.
#include "engine/cpu/entries.h"

namespace strata::cpu {
namespace {

Refused match(const OpRequest& request) {
    if (const Refused refused = not_multiple("rope_dims", request.rope_dims, 2)) return refused;
    if (request.rope_dims > 2 * kRopePairsMax)
        return one_of("rope_dims", std::to_string(request.rope_dims), "at most 512");
    if (request.rope_dims > request.head_dim)
        return one_of("rope_dims", std::to_string(request.rope_dims), "at most head_dim");
    return not_multiple("heads", request.heads, 1);
}

template <Isa kIsa>
void run(const OpCall& call, WorkRange range) {
    RopeArgs args{};
    args.x = call.out;
    args.positions = call.row.positions;
    args.frequencies = call.rope;
    args.heads = call.request->heads;
    args.head_dim = call.request->head_dim;
    args.rope_dims = call.request->rope_dims;
    args.is_neox = (call.request->features & kFeatureRopeNeox) != 0;
    const bool has_magnitude = (call.request->features & kFeatureRopeMagnitude) != 0;
    args.magnitude = has_magnitude ? call.rope[args.rope_dims / 2] : 1.0f;
    isa_ops<kIsa>().rope(args, range.begin, range.end);
}

uint64_t bytes_moved(const OpRequest& r) {
    return uint64_t{r.rows} * r.heads * r.head_dim * 8;
}

std::vector<OpRequest> test_requests() {
    std::vector<OpRequest> requests;
    constexpr uint32_t kNeox = kFeatureRopeNeox;
    for (const uint32_t features : {uint32_t{0},
                                    kNeox,
                                    kNeox | kFeatureRopeFactors,
                                    uint32_t{kFeatureRopeMagnitude},
                                    kNeox | kFeatureRopeMagnitude}) {
        for (const uint32_t rope_dims : {64u, 24u}) {
            OpRequest request;
            request.kind = OpKind::Rope;
            request.rows = 6;
            request.heads = 3;
            request.head_dim = 64;
            request.k = request.heads * request.head_dim;
            request.rope_dims = rope_dims;
            request.features = features;
            requests.push_back(request);
        }
    }
    return requests;
}

}  // namespace

void append_rope(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        KernelEntry entry;
        entry.id = "rope.f64_angle.f32." + std::string(isa_name(isa));
        entry.kind = OpKind::Rope;
        entry.features = kFeatureRopeNeox | kFeatureRopeFactors | kFeatureRopeMagnitude;
        entry.isa = isa_name(isa);
        entry.match = match;
        entry.items = items_rows;
        entry.run = run<constant()>;
        entry.bytes_moved = bytes_moved;
        entry.tolerance = {.abs = 1e-6, .rel = 1e-6, .nmse = 1e-13};
        entry.test_requests = test_requests;
        table.push_back(entry);
    });
}

}  // namespace strata::cpu
