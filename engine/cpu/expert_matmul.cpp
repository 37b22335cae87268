// ExpertMatmul: the products of each row with the experts it chose, [R, k] x [experts, n, k] ->
// [R * experts_used, n] in the order of experts, in the families of matmul.cpp:
//   expert_matmul.rows16.*_x_i8   packed block formats, each expert in tiles of its own
//   expert_matmul.tile16.*_x_i8   block formats that launches unpack tile by tile
//   expert_matmul.rowdot.*_x_f32  any type in the file's layout
//
// The arithmetic is that of matmul_i8_body.h and matmul_f32_body.h, one chain per (row, output);
// which rows share an expert cannot change it. An expert's rows stand side by side when its weights
// are read: in the order of experts as they come, else collected in scratch memory.
//
// Work item: kItemOutputs outputs of one expert for all of its rows. Bytes moved: the weights of
// each expert that some row chose once per launch (for R rows min(experts, R * experts_used)
// experts at most: n * k weights each), the activations of a pair once per item (from L2).
// Operations: 2 * R * experts_used * n * k.
#include <cstring>

#include "engine/cpu/entries.h"
#include "engine/cpu/rows16.h"
#include "engine/cpu/weight_types.h"
#include "engine/plan/routing.h"

namespace strata::cpu {
namespace {

constexpr uint32_t kItemOutputs = 128;
static_assert(kItemOutputs % kTileRows == 0 && kItemOutputs % kRowDotOutputs == 0);

template <DType kType, DType kAct>
Refused match(const OpRequest& request) {
    if (request.weight != kType)
        return one_of("weight", dtype_name(request.weight), dtype_name(kType));
    if (request.act != kAct) return one_of("act", dtype_name(request.act), dtype_name(kAct));
    if (request.n == 0) return one_of("n", "0", "1 and up");
    if (request.experts == 0 || request.experts_used == 0)
        return one_of("experts or experts_used", "0", "1 and up");
    return not_multiple("k", request.k, dtype_info(kType).block_elements);
}

uint32_t items_of_expert(uint32_t n) {
    return (n + kItemOutputs - 1) / kItemOutputs;
}

Routing routing_of(const OpCall& call) {
    const OpRequest& r = *call.request;
    return routing_view(call.routing, call.rows / r.experts_used, r.experts_used, r.experts);
}

uint32_t items(const OpCall& call) {
    return routing_of(call).groups() * items_of_expert(call.weight.n);
}

bool is_in_expert_order(const OpCall& call) {
    return (call.request->features & kFeatureExpertOrder) != 0;
}

uint64_t rows_max(const OpRequest& r) {
    return r.rows / r.experts_used;
}

// The pairs of one group and the outputs that are to be computed for them.
struct Part {
    uint32_t expert, place, rows;  // pairs [place, place + rows) in the order of experts
    uint32_t begin, end;           // outputs
};

// Calls fn(part, is_new_group) for the range's items, neighbouring items of one group together.
template <class Fn>
void for_each_part(const OpCall& call, WorkRange range, const Routing& routing, Fn&& fn) {
    const uint32_t n = call.weight.n;
    const uint32_t per_expert = items_of_expert(n);
    for (uint32_t item = range.begin; item < range.end;) {
        const uint32_t group = item / per_expert;
        const uint32_t first = group * per_expert;
        const uint32_t stop = range.end < first + per_expert ? range.end : first + per_expert;
        const uint32_t end = (stop - first) * kItemOutputs;
        const uint32_t place = routing.group_begin[group];
        fn(Part{routing.group_expert[group],
                place,
                routing.group_begin[group + 1] - place,
                (item - first) * kItemOutputs,
                end < n ? end : n});
        item = stop;
    }
}

// First row of a group whose rows are neighbours in the step as well; their number otherwise.
uint32_t neighbours(const Routing& routing, const Part& part) {
    const uint32_t first = routing.row_of[part.place];
    const uint32_t last = routing.row_of[part.place + part.rows - 1];
    return last - first + 1 == part.rows ? first : routing.rows;
}

// Copies rows of `width` elements of the group's pairs from [R, width] to [rows, width].
template <class T>
void collect(const Routing& routing, const Part& part, const T* from, uint64_t width, T* to) {
    for (uint32_t i = 0; i < part.rows; ++i) {
        const uint64_t row = routing.row_of[part.place + i];
        std::memcpy(to + i * width, from + row * width, width * sizeof(T));
    }
}

void scale_outputs(const OpCall& call, const Part& part) {
    if (!call.vector) return;
    const float scale = call.vector[part.expert];
    for (uint32_t i = 0; i < part.rows; ++i) {
        float* const out = call.out + uint64_t{part.place + i} * call.weight.n;
        for (uint32_t o = part.begin; o < part.end; ++o) out[o] *= scale;
    }
}

const uint8_t* weight_of(const OpCall& call, uint32_t expert) {
    return reinterpret_cast<const uint8_t*>(call.weight.data) + expert * call.weight.expert_bytes;
}

// Room for the rows of a group, where they do not lie side by side.
uint64_t scratch_i8(const OpRequest& r) {
    const bool is_in_order = (r.features & kFeatureExpertOrder) != 0;
    return is_in_order ? 0 : rows_max(r) * (r.k + r.k / 32 * 8ull);
}

// Int8 rows of the group, side by side.
void bind_rows(const OpCall& call, const Routing& routing, const Part& part, MatmulI8Args& args) {
    const uint64_t k = call.weight.k;
    const uint64_t groups = k / 32;
    const auto take = [&](uint64_t row) {
        args.values = call.quant.values + row * k;
        args.scales = call.quant.scales + row * groups;
        args.sums = call.quant.sums + row * groups;
    };
    if (is_in_expert_order(call)) return take(part.place);
    const uint32_t first = neighbours(routing, part);
    if (first < routing.rows) return take(first);
    const uint64_t rows = rows_max(*call.request);
    auto* const scales = reinterpret_cast<float*>(call.scratch);
    auto* const sums = reinterpret_cast<int32_t*>(scales + rows * groups);
    auto* const values = reinterpret_cast<int8_t*>(sums + rows * groups);
    collect(routing, part, call.quant.scales, groups, scales);
    collect(routing, part, call.quant.sums, groups, sums);
    collect(routing, part, call.quant.values, k, values);
    args.values = values;
    args.scales = scales;
    args.sums = sums;
}

template <Isa kIsa, DType kType>
void run_i8(const OpCall& call, WorkRange range) {
    const Routing routing = routing_of(call);
    MatmulI8Args args{};
    args.layout = rows16_layout(kType, call.weight.k);
    args.n = call.weight.n;
    args.k = call.weight.k;
    for_each_part(call, range, routing, [&](const Part& part) {
        args.packed = weight_of(call, part.expert);
        args.out = call.out + uint64_t{part.place} * args.n;
        args.rows = part.rows;
        bind_rows(call, routing, part, args);
        isa_ops<kIsa>().matmul_i8[*packed_format(kType)](
            args, part.begin / kTileRows, (part.end + kTileRows - 1) / kTileRows);
        scale_outputs(call, part);
    });
}

// Behind the rows is room for a tile.
template <Isa kIsa, DType kType>
void run_tile(const OpCall& call, WorkRange range) {
    const Routing routing = routing_of(call);
    auto* const tile = reinterpret_cast<uint8_t*>(call.scratch) + scratch_i8(*call.request);
    WeightView weight = call.weight;
    MatmulI8Args args{};
    args.layout = rows16_layout(kType, weight.k);
    args.packed = tile;
    args.n = weight.n;
    args.k = weight.k;
    for_each_part(call, range, routing, [&](const Part& part) {
        weight.data = call.weight.data + part.expert * call.weight.expert_bytes;
        args.out = call.out + uint64_t{part.place} * args.n;
        args.rows = part.rows;
        bind_rows(call, routing, part, args);
        for (uint32_t output = part.begin; output < part.end; output += kTileRows) {
            rows16_unpack_tile(weight, output / kTileRows, tile);
            args.first_output = output;
            isa_ops<kIsa>().matmul_i8[*packed_format(kType)](args, 0, 1);
        }
        scale_outputs(call, part);
    });
}

uint64_t scratch_tile(const OpRequest& r) {
    return scratch_i8(r) + rows16_layout(r.weight, r.k).tile_bytes;
}

// f32 rows of the group, side by side; behind them is room for the decoded weights.
void bind_rows(const OpCall& call, const Routing& routing, const Part& part, MatmulF32Args& args) {
    const uint64_t k = call.weight.k;
    args.scratch = reinterpret_cast<float*>(call.scratch);
    const uint32_t first = is_in_expert_order(call) ? part.place : neighbours(routing, part);
    args.x = call.x + first * k;
    if (is_in_expert_order(call) || first < routing.rows) return;
    float* const rows = args.scratch + kRowDotOutputs * k;
    collect(routing, part, call.x, k, rows);
    args.x = rows;
}

template <Isa kIsa>
void run_f32(const OpCall& call, WorkRange range) {
    const Routing routing = routing_of(call);
    MatmulF32Args args{};
    args.row_bytes = dtype_bytes(call.weight.type, call.weight.k);
    args.ggml_type = static_cast<int>(call.weight.type);
    args.n = call.weight.n;
    args.k = call.weight.k;
    for_each_part(call, range, routing, [&](const Part& part) {
        args.weight = weight_of(call, part.expert);
        args.out = call.out + uint64_t{part.place} * args.n;
        args.rows = part.rows;
        bind_rows(call, routing, part, args);
        isa_ops<kIsa>().matmul_f32(
            args, part.begin / kRowDotOutputs, (part.end + kRowDotOutputs - 1) / kRowDotOutputs);
        scale_outputs(call, part);
    });
}

uint64_t scratch_f32(const OpRequest& r) {
    const bool is_in_order = (r.features & kFeatureExpertOrder) != 0;
    return (kRowDotOutputs + (is_in_order ? 0 : rows_max(r))) * r.k * sizeof(float);
}

uint64_t experts_read(const OpRequest& r) {
    return r.experts < r.rows ? r.experts : r.rows;
}

uint64_t bytes_rows_i8(const OpRequest& r) {
    return uint64_t{r.rows} * (r.k + r.k / 32 * 8ull + r.n * 4ull);
}

uint64_t bytes_i8(const OpRequest& r) {
    return experts_read(r) * rows16_packing().bytes(r.weight, r.n, r.k) + bytes_rows_i8(r);
}

uint64_t bytes_tile(const OpRequest& r) {
    return experts_read(r) * r.n * dtype_bytes(r.weight, r.k) + bytes_rows_i8(r);
}

uint64_t bytes_f32(const OpRequest& r) {
    const uint64_t weight = r.n * dtype_bytes(r.weight, r.k);
    return experts_read(r) * weight + uint64_t{r.rows} * (uint64_t{r.k} + r.n) * 4;
}

// Experts without rows, with one, with many; a last tile and a last item that are not full.
template <DType kType, DType kAct>
std::vector<OpRequest> test_shapes() {
    const uint32_t block = dtype_info(kType).block_elements;
    const uint32_t unit = block == 1 ? 33 : block;
    const struct {
        uint32_t rows, n, k, experts, used, features;
    } shapes[] = {{1, 16, unit, 3, 1, 0},
                  {5, 37, 3 * unit, 8, 2, kFeatureExpertOrder},
                  {5, 37, 3 * unit, 8, 2, kFeatureExpertScale},
                  {19, 150, unit, 4, 3, 0}};
    std::vector<OpRequest> requests;
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::ExpertMatmul;
        request.weight = kType;
        request.act = kAct;
        request.rows = shape.rows * shape.used;
        request.n = shape.n;
        request.k = shape.k;
        request.experts = shape.experts;
        request.experts_used = shape.used;
        request.features = shape.features;
        requests.push_back(request);
    }
    return requests;
}

template <Isa kIsa, DType kType, DType kAct>
KernelEntry entry_of(std::string_view family) {
    KernelEntry entry;
    entry.id = "expert_matmul." + std::string(family) + "." + std::string(dtype_name(kType)) +
               (kAct == DType::I8Block ? "_x_i8." : "_x_f32.") + std::string(isa_name(kIsa));
    entry.kind = OpKind::ExpertMatmul;
    entry.features = kFeatureExpertOrder | kFeatureExpertScale;
    entry.isa = isa_name(kIsa);
    entry.match = match<kType, kAct>;
    entry.items = items;
    // As the matmul of the same family.
    entry.tolerance = {.abs = 1e-4, .rel = 1e-5, .nmse = 1e-11};
    entry.test_requests = test_shapes<kType, kAct>;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_i8() {
    KernelEntry entry = entry_of<kIsa, kType, DType::I8Block>("rows16");
    entry.run = run_i8<kIsa, kType>;
    entry.packing = &rows16_packing();
    entry.scratch_bytes = scratch_i8;
    entry.bytes_moved = bytes_i8;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_tile() {
    KernelEntry entry = entry_of<kIsa, kType, DType::I8Block>("tile16");
    entry.run = run_tile<kIsa, kType>;
    entry.scratch_bytes = scratch_tile;
    entry.bytes_moved = bytes_tile;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_f32() {
    KernelEntry entry = entry_of<kIsa, kType, DType::F32>("rowdot");
    entry.run = run_f32<kIsa>;
    entry.scratch_bytes = scratch_f32;
    entry.bytes_moved = bytes_f32;
    return entry;
}

}  // namespace

void append_expert_matmul(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        const auto append_f32 = [&]<DType kType>() {
            table.push_back(entry_f32<constant(), kType>());
        };
        PackedTypes::each([&]<DType kType>() { table.push_back(entry_i8<constant(), kType>()); });
        TileTypes::each([&]<DType kType>() { table.push_back(entry_tile<constant(), kType>()); });
        FloatTypes::each(append_f32);
        PackedTypes::each(append_f32);
        TileTypes::each(append_f32);
    });
}

}  // namespace strata::cpu
