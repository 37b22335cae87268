// Matmul [R, k] x weight [n, k] -> [R, n], in three families:
//   matmul.rows16.*_x_i8   packed block formats times int8 activations (matmul_i8_body.h)
//   matmul.tile16.*_x_i8   the same of formats that stay as the file has them: each tile is
//   unpacked
//                          into scratch memory and multiplied with all rows of the step (rows16.h)
//   matmul.rowdot.*_x_f32  any type in the file's layout times f32 activations (matmul_f32_body.h)
#include <algorithm>

#include "engine/cpu/entries.h"
#include "engine/cpu/rows16.h"
#include "engine/cpu/weight_types.h"

namespace strata::cpu {
namespace {

template <DType kType, DType kAct>
Refused match(const OpRequest& request) {
    if (request.weight != kType)
        return one_of("weight", dtype_name(request.weight), dtype_name(kType));
    if (request.act != kAct) return one_of("act", dtype_name(request.act), dtype_name(kAct));
    if (request.n == 0) return one_of("n", "0", "1 and up");
    return not_multiple("k", request.k, dtype_info(kType).block_elements);
}

uint32_t items_i8(const OpCall& call) {
    return (call.weight.n + kTileRows - 1) / kTileRows;
}

template <DType kType>
MatmulI8Args args_i8(const OpCall& call) {
    MatmulI8Args args{};
    args.packed = reinterpret_cast<const uint8_t*>(call.weight.data);
    args.layout = rows16_layout(kType, call.weight.k);
    args.values = call.quant.values;
    args.scales = call.quant.scales;
    args.sums = call.quant.sums;
    args.bias = call.vector;
    args.out = call.out;
    args.rows = call.rows;
    args.n = call.weight.n;
    args.k = call.weight.k;
    return args;
}

template <Isa kIsa, DType kType>
void run_i8(const OpCall& call, WorkRange range) {
    const MatmulI8Args args = args_i8<kType>(call);
    isa_ops<kIsa>().matmul_i8[*packed_format(kType)](args, range.begin, range.end);
}

template <Isa kIsa, DType kType>
void run_tile(const OpCall& call, WorkRange range) {
    MatmulI8Args args = args_i8<kType>(call);
    auto* const tile = reinterpret_cast<uint8_t*>(call.scratch);
    args.packed = tile;
    for (uint32_t index = range.begin; index < range.end; ++index) {
        rows16_unpack_tile(call.weight, index, tile);
        args.first_output = kTileRows * index;
        isa_ops<kIsa>().matmul_i8[*packed_format(kType)](args, 0, 1);
    }
}

uint64_t scratch_tile(const OpRequest& r) {
    return rows16_layout(r.weight, r.k).tile_bytes;
}

uint64_t bytes_rows_i8(const OpRequest& r) {
    return uint64_t{r.rows} * (r.k + r.k / 32 * 8ull + r.n * 4ull);
}

uint64_t bytes_i8(const OpRequest& r) {
    return rows16_packing().bytes(r.weight, r.n, r.k) + bytes_rows_i8(r);
}

uint64_t bytes_tile(const OpRequest& r) {
    return r.n * dtype_bytes(r.weight, r.k) + bytes_rows_i8(r);
}

uint32_t output_blocks(const OpCall& call) {
    return (call.weight.n + kRowDotOutputs - 1) / kRowDotOutputs;
}

// Matrices of a few outputs would leave threads without work: their rows are split as well.
constexpr uint32_t kFewBlocks = 16;
constexpr uint32_t kPartRows = 32;

uint32_t row_parts(const OpCall& call) {
    return output_blocks(call) < kFewBlocks ? (call.rows + kPartRows - 1) / kPartRows : 1;
}

uint32_t items_f32(const OpCall& call) {
    return output_blocks(call) * row_parts(call);
}

template <Isa kIsa>
void run_f32(const OpCall& call, WorkRange range) {
    MatmulF32Args args{};
    args.weight = reinterpret_cast<const uint8_t*>(call.weight.data);
    args.row_bytes = dtype_bytes(call.weight.type, call.weight.k);
    args.ggml_type = static_cast<int>(call.weight.type);
    args.bias = call.vector;
    args.n = call.weight.n;
    args.k = call.weight.k;
    args.scratch = reinterpret_cast<float*>(call.scratch);
    const uint32_t blocks = output_blocks(call);
    const uint32_t part_rows = row_parts(call) == 1 ? call.rows : kPartRows;
    for (uint32_t item = range.begin; item < range.end;) {
        const uint32_t first = item / blocks * part_rows;
        const uint32_t end = std::min(range.end, (item / blocks + 1) * blocks);
        args.x = call.x + uint64_t{first} * args.k;
        args.out = call.out + uint64_t{first} * args.n;
        args.rows = std::min(part_rows, call.rows - first);
        isa_ops<kIsa>().matmul_f32(args, item % blocks, end - item / blocks * blocks);
        item = end;
    }
}

uint64_t scratch_f32(const OpRequest& r) {
    return uint64_t{kRowDotOutputs} * r.k * sizeof(float);
}

uint64_t bytes_f32(const OpRequest& r) {
    const uint64_t weight = r.n * dtype_bytes(r.weight, r.k);
    return weight + uint64_t{r.rows} * (uint64_t{r.k} + r.n) * 4;
}

// Shapes with a last tile that is not full, one row, odd rows, and a block count that is odd.
template <DType kType, DType kAct>
std::vector<OpRequest> test_shapes() {
    const uint32_t block = dtype_info(kType).block_elements;
    const uint32_t unit = block == 1 ? 1 : block;
    const struct {
        uint32_t rows, n, k;
        bool bias;
    } shapes[] = {{1, 16, unit == 1 ? 33 : unit, false},
                  {3, 37, unit == 1 ? 100 : 3 * unit, true},
                  {19, 64, unit == 1 ? 259 : (unit == 32 ? 18 * unit : 2 * unit), false},
                  {70, 5, unit == 1 ? 40 : unit, true}};
    std::vector<OpRequest> requests;
    for (const auto& shape : shapes) {
        OpRequest request;
        request.kind = OpKind::Matmul;
        request.weight = kType;
        request.act = kAct;
        request.rows = shape.rows;
        request.n = shape.n;
        request.k = shape.k;
        request.features = shape.bias ? uint32_t{kFeatureBias} : 0u;
        requests.push_back(request);
    }
    return requests;
}

template <Isa kIsa, DType kType>
KernelEntry entry_of(std::string_view family) {
    KernelEntry entry;
    entry.id = "matmul." + std::string(family) + "." + std::string(dtype_name(kType)) + "_x_i8." +
               std::string(isa_name(kIsa));
    entry.kind = OpKind::Matmul;
    entry.features = kFeatureBias;
    entry.isa = isa_name(kIsa);
    entry.match = match<kType, DType::I8Block>;
    entry.items = items_i8;
    // Integer sums are exact; what is left is one f32 rounding per block of 32.
    entry.tolerance = {.abs = 1e-4, .rel = 1e-5, .nmse = 1e-11};
    entry.test_requests = test_shapes<kType, DType::I8Block>;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_i8() {
    KernelEntry entry = entry_of<kIsa, kType>("rows16");
    entry.run = run_i8<kIsa, kType>;
    entry.packing = &rows16_packing();
    entry.bytes_moved = bytes_i8;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_tile() {
    KernelEntry entry = entry_of<kIsa, kType>("tile16");
    entry.run = run_tile<kIsa, kType>;
    entry.scratch_bytes = scratch_tile;
    entry.bytes_moved = bytes_tile;
    return entry;
}

template <Isa kIsa, DType kType>
KernelEntry entry_f32() {
    KernelEntry entry;
    entry.id =
        "matmul.rowdot." + std::string(dtype_name(kType)) + "_x_f32." + std::string(isa_name(kIsa));
    entry.kind = OpKind::Matmul;
    entry.features = kFeatureBias;
    entry.isa = isa_name(kIsa);
    entry.match = match<kType, DType::F32>;
    entry.items = items_f32;
    entry.run = run_f32<kIsa>;
    entry.scratch_bytes = scratch_f32;
    entry.bytes_moved = bytes_f32;
    // f32 sums in at least 8 chains of k / 8 additions each.
    entry.tolerance = {.abs = 1e-4, .rel = 1e-5, .nmse = 1e-11};
    entry.test_requests = test_shapes<kType, DType::F32>;
    return entry;
}

}  // namespace

void append_matmul_i8(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        PackedTypes::each([&]<DType kType>() { table.push_back(entry_i8<constant(), kType>()); });
        TileTypes::each([&]<DType kType>() { table.push_back(entry_tile<constant(), kType>()); });
    });
}

void append_matmul_f32(Isa isa, std::vector<KernelEntry>& table) {
    with_isa(isa, [&](auto constant) {
        const auto append = [&]<DType kType>() { table.push_back(entry_f32<constant(), kType>()); };
        FloatTypes::each(append);
        PackedTypes::each(append);
        TileTypes::each(append);
    });
}

}  // namespace strata::cpu
