// Every kernel of an instruction set against the portable kernel of the same operation, on buffers
// of exactly the right size: what an address sanitizer and an emulator of another processor can
// check. Parity with independent references is tests/ops' business.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/cpu_features.h"
#include "engine/cpu/kernels.h"
#include "engine/plan/state_layout.h"
#include "tests/engine_unit/check.h"

namespace strata {
namespace {

constexpr uint32_t kContext = 90;  // positions of a test sequence, three pages
constexpr uint32_t kPages = 3;

// xorshift32; the seed makes a case reproducible.
class Random {
  public:
    explicit Random(uint32_t seed) : state_(seed) {}
    uint32_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 17;
        state_ ^= state_ << 5;
        return state_;
    }
    float unit() { return static_cast<float>(next() >> 8) / 8388608.0f - 1.0f; }  // [-1, 1)
    std::vector<float> floats(uint64_t count) {
        std::vector<float> out(count);
        for (float& value : out) value = unit();
        return out;
    }

  private:
    uint32_t state_;
};

// Everything a call of any kind can refer to, filled from the request alone.
struct World {
    OpRequest request;
    std::vector<float> x, y, out, vector, rope;
    std::vector<int8_t> values;
    std::vector<float> scales;
    std::vector<int32_t> sums;
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions, sequences, page_tables, gather;
    std::vector<std::byte> weight, k_pages, v_pages;
    std::vector<std::byte> index_keys, index_blocks;
    std::vector<uint32_t> masks;
    std::vector<float> vector2, states;
    uint64_t state_floats = 0;
    std::vector<StateRun> runs;
};

// Columns of a weight: its inputs, or the taps of a convolution.
uint32_t weight_columns(const OpRequest& request) {
    return request.taps > 0 ? request.taps : request.k;
}

std::vector<std::byte> random_weight(Random& random, DType type, uint64_t elements) {
    std::vector<std::byte> bytes(dtype_bytes(type, elements));
    // Bytes without the top exponent bits: no scale is an infinity or a NaN, whatever the format.
    for (std::byte& value : bytes) value = static_cast<std::byte>(random.next() % 0x2f);
    return bytes;
}

// Index keys, and masks of which each row has its own page.
void fill_index(Random& random, World& world) {
    const OpRequest& request = world.request;
    if (request.block_tokens > 0) {
        const uint64_t keys = uint64_t{request.sequences} * kPages * 32 * request.head_dim;
        world.index_keys = random_weight(random, request.kv, keys);
        world.index_blocks = random_weight(random, request.kv, keys / request.block_tokens);
    }
    for (uint32_t row = 0; row < request.rows; ++row) {
        for (uint32_t word = 0; word < request.mask_words; ++word)
            world.masks.push_back(word == world.positions[row] / 32 ? ~0u : random.next());
    }
}

World make_world(const OpRequest& request) {
    Random random(request.k * 31 + request.n * 7 + request.rows + 1);
    World world;
    world.request = request;
    const uint64_t elements = uint64_t{request.rows} * request.k;
    const bool is_concat = request.kind == OpKind::Concat;
    world.x = random.floats(request.kind == OpKind::Embed ? 0 : elements);
    const bool has_gates = request.kind == OpKind::StreamAdd || request.kind == OpKind::StreamScale;
    const uint32_t y_width = is_concat                           ? request.n - request.k
                             : request.kind == OpKind::DeltaRule ? 2 * request.heads
                             : has_gates                         ? request.heads
                                                                 : request.k;
    world.y = random.floats(uint64_t{request.rows} * y_width);
    world.out = random.floats(uint64_t{request.rows} * (request.n > 0 ? request.n : request.k));
    const bool is_grouped =
        (request.features & kFeatureGrouped) != 0 && (request.features & kFeatureGroupGain) == 0;
    world.vector = random.floats(request.kind == OpKind::Matmul ? request.n
                                 : is_grouped                   ? request.head_dim
                                                                : request.k);
    for (uint32_t i = 0; i < request.rope_dims / 2 + 1; ++i)
        world.rope.push_back(1.0f / static_cast<float>(1 + i));
    world.values.resize(elements);
    for (int8_t& value : world.values) value = static_cast<int8_t>(random.next() % 255);
    for (int8_t& value : world.values) value = value == -128 ? int8_t{-127} : value;
    for (uint64_t g = 0; g < elements / 32; ++g) {
        uint32_t halves[2] = {};
        for (uint32_t i = 0; i < 32; ++i)
            halves[i / 16] += static_cast<uint32_t>(int32_t{world.values[32 * g + i]});
        world.sums.push_back(static_cast<int32_t>((halves[1] << 16) | (halves[0] & 0xffff)));
        world.scales.push_back(random.unit());
    }
    const uint32_t sequences = request.sequences;
    for (uint32_t row = 0; row < request.rows; ++row) {
        world.tokens.push_back(static_cast<int32_t>(random.next() % std::max(request.k, 1u)));
        world.gather.push_back(row);
        // Rows of one sequence are neighbours and ascend in position.
        const uint32_t per_sequence = (request.rows + sequences - 1) / sequences;
        world.sequences.push_back(row / per_sequence);
        world.positions.push_back(kContext - per_sequence + row % per_sequence);
        if (row % per_sequence == 0)
            world.runs.push_back(
                {row / per_sequence, row, 0, world.positions.back(), request.undo, 0, 0, 1});
        StateRun& run = world.runs.back();
        ++run.rows;
        run.commit = run.rows - std::min(run.rows, request.undo);
    }
    world.vector2 = random.floats(request.kind == OpKind::DeltaGates ? request.heads : 0);
    world.state_floats = op_state_floats(request);
    world.states = random.floats(world.state_floats * sequences);
    for (uint32_t page = 0; page < sequences * kPages; ++page)
        world.page_tables.push_back(sequences * kPages - 1 - page);
    if (request.weight != DType::None)
        world.weight =
            random_weight(random, request.weight, uint64_t{request.n} * weight_columns(request));
    if (request.kv != DType::None) {
        const uint64_t floats =
            uint64_t{sequences} * kPages * request.kv_heads * request.head_dim * 32;
        const uint64_t bytes = dtype_bytes(request.kv, floats);
        for (std::vector<std::byte>* pages : {&world.k_pages, &world.v_pages}) {
            pages->resize(bytes);
            for (std::byte& value : *pages) value = static_cast<std::byte>(random.next() % 0x3b);
        }
    }
    fill_index(random, world);
    return world;
}

void run_entry(const KernelEntry& entry, World& world) {
    const OpRequest& request = world.request;
    const bool is_embed = request.kind == OpKind::Embed;
    OpCall call;
    call.request = &request;
    call.rows = request.rows;
    call.x = world.x.data();
    call.y = world.y.data();
    call.out = world.out.data();
    call.quant = {world.values.data(), world.scales.data(), world.sums.data()};
    call.vector = world.vector.data();
    call.vector2 = world.vector2.data();
    call.state = {world.states.data(), world.state_floats};
    call.row.runs = world.runs.data();
    call.row.run_count = static_cast<uint32_t>(world.runs.size());
    call.rope = world.rope.data();
    call.eps = 1e-5f;
    call.scale = 0.125f;
    call.row.rows = request.rows;
    call.row.tokens = world.tokens.data();
    call.row.positions = world.positions.data();
    call.row.sequences = world.sequences.data();
    call.row.page_tables = world.page_tables.data();
    call.row.page_table_stride = kPages;
    call.row.gather = world.gather.data();
    call.row.gather_rows = request.rows;
    call.kv = {world.k_pages.data(), world.v_pages.data()};
    call.index = {world.index_keys.data(), world.index_blocks.data()};
    call.masks = world.masks.data();
    call.weight = {world.weight.data(),
                   world.weight.size(),
                   request.weight,
                   is_embed ? request.k : request.n,
                   is_embed ? request.n : weight_columns(request)};
    std::vector<std::byte> packed;
    if (entry.packing) {
        const Packing& packing = *entry.packing;
        packed.resize(packing.bytes(request.weight, request.n, weight_columns(request)));
        const uint32_t tiles = (request.n + packing.tile_rows - 1) / packing.tile_rows;
        packing.pack(call.weight, packed.data(), {0, tiles});
        call.weight.data = packed.data();
        call.weight.bytes = packed.size();
    }
    std::vector<float> scratch;
    if (entry.scratch_bytes) scratch.resize(entry.scratch_bytes(request) / sizeof(float));
    call.scratch = reinterpret_cast<std::byte*>(scratch.data());
    // Items one by one: a kernel may not count on ranges.
    for (uint32_t item = 0; item < entry.items(call); ++item) entry.run(call, {item, item + 1});
}

const KernelEntry* portable_for(const std::vector<KernelEntry>& table, const OpRequest& request) {
    for (const KernelEntry& entry : table) {
        const bool takes_features = (request.features & ~entry.features) == 0;
        if (entry.kind == request.kind && takes_features && !entry.match(request)) return &entry;
    }
    return nullptr;
}

void check_close(const KernelEntry& entry,
                 const std::vector<float>& got,
                 const std::vector<float>& want) {
    double error = 0;
    double power = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        CHECK(std::isfinite(got[i]), entry.id, i, got[i]);
        error += std::pow(double{got[i]} - double{want[i]}, 2);
        power += std::pow(double{want[i]}, 2);
    }
    CHECK(error <= 1e-10 * power, entry.id, error, power);
}

// Values may differ by one where the two roundings of x fall on either side of a half.
void check_codes(const KernelEntry& entry, const World& got, const World& want) {
    uint32_t different = 0;
    for (size_t i = 0; i < want.values.size(); ++i) {
        const int apart = std::abs(int{got.values[i]} - int{want.values[i]});
        CHECK(apart <= 1, entry.id, i, int{got.values[i]}, int{want.values[i]});
        different += apart != 0;
    }
    CHECK(different <= want.values.size() / 100, entry.id, different);
}

TEST(kernels_of_instruction_sets_agree_with_portable_ones) {
    const CpuFeatures features = detect_cpu();
    const std::vector<KernelEntry> portable = cpu_kernels(limit_isa(features, "portable"));
    uint32_t compared = 0;
    for (const KernelEntry& entry : cpu_kernels(features)) {
        for (const OpRequest& request : entry.test_requests()) {
            // They read a routing, a hash or a table; tests/ops holds them against float64, on each
            // instruction set.
            if (request.experts > 0 || reads_on_demand(request.kind) ||
                request.kind == OpKind::NgramRows)
                continue;
            const KernelEntry* reference = portable_for(portable, request);
            CHECK(reference, entry.id, describe(request));
            World got = make_world(request);
            World want = make_world(request);
            run_entry(entry, got);
            run_entry(*reference, want);
            check_close(entry, got.out, want.out);
            check_close(entry, got.scales, want.scales);
            check_codes(entry, got, want);
            CHECK(got.k_pages == want.k_pages && got.v_pages == want.v_pages, entry.id);
            ++compared;
        }
    }
    CHECK(compared > 100, compared);
}

}  // namespace
}  // namespace strata

CHECK_MAIN
