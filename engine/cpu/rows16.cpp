#include "engine/cpu/rows16.h"

#include <array>
#include <cstring>

#include "engine/base/assert.h"
#include "engine/quant/blocks.h"

namespace strata::cpu {
namespace {

// What of a format is stored where.
struct Shape {
    DType type;
    PackedFormat format;
    uint32_t scale_block;  // weights of one f16 scale
    bool has_mins;
    uint32_t sub_block;  // weights of one sub-scale, 0 if there is none
    bool is_nibbles;
};

constexpr std::array<Shape, kPackedFormatCount> kShapes = {{
    {DType::Q4_0, kPackedQ4_0, 32, false, 0, true},
    {DType::Q4_1, kPackedQ4_1, 32, true, 0, true},
    {DType::Q5_0, kPackedQ5_0, 32, false, 0, false},
    {DType::Q5_1, kPackedQ5_1, 32, true, 0, false},
    {DType::Q8_0, kPackedQ8_0, 32, false, 0, false},
    {DType::Q4_K, kPackedQ4_K, 256, true, 32, true},
    {DType::Q5_K, kPackedQ5_K, 256, true, 32, false},
    {DType::Q6_K, kPackedQ6_K, 256, false, 16, false},
}};

const Shape* find_shape(DType type) {
    for (const Shape& shape : kShapes) {
        if (shape.type == type) return &shape;
    }
    return nullptr;
}

const Shape& shape_of(DType type) {
    const Shape* shape = find_shape(type);
    STRATA_ASSERT(shape, "only block formats are packed");
    return *shape;
}

uint64_t padded(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

void store_u16(uint8_t* at, uint16_t value) {
    std::memcpy(at, &value, 2);
}

// Codes of one group of 32 of row `lane`.
void store_codes(const Shape& shape, const uint8_t* q, uint32_t lane, uint8_t* chunks) {
    const uint32_t count = shape.is_nibbles ? 4 : 8;
    for (uint32_t c = 0; c < count; ++c) {
        uint8_t* to = chunks + 64 * c + 4 * lane;
        for (uint32_t j = 0; j < 4; ++j) {
            const uint32_t i = 4 * c + j;
            to[j] = static_cast<uint8_t>(shape.is_nibbles ? q[i] | (q[i + 16] << 4) : q[i]);
        }
    }
}

void store_group(const Shape& shape,
                 const Rows16Layout& layout,
                 const blocks::Group& group,
                 uint32_t g,
                 uint32_t lane,
                 uint8_t* tile) {
    const uint64_t group_bytes = shape.is_nibbles ? 256 : 512;
    store_codes(shape, group.q, lane, tile + layout.quants_at + g * group_bytes);
    const uint64_t at = uint64_t{g} * 32 / shape.scale_block * kTileRows + lane;
    store_u16(tile + layout.scales_at + 2 * at, group.d[0]);
    const bool subtracts_min = shape.has_mins && shape.sub_block != 0;
    if (shape.has_mins) {
        const uint16_t sign = subtracts_min ? 0x8000 : 0;
        store_u16(tile + layout.mins_at + 2 * at, static_cast<uint16_t>(group.m ^ sign));
    }
    if (subtracts_min) {
        const uint64_t sub = uint64_t{g} * kTileRows + lane;
        tile[layout.sub_scales_at + sub] = static_cast<uint8_t>(group.sub_scale[0]);
        tile[layout.sub_mins_at + sub] = static_cast<uint8_t>(group.sub_min[0]);
    } else if (shape.sub_block == 16) {
        for (uint32_t half = 0; half < 2; ++half) {
            const uint64_t sub = (uint64_t{g} * 2 + half) * kTileRows + lane;
            tile[layout.sub_scales_at + sub] = static_cast<uint8_t>(group.sub_scale[half]);
        }
    }
}

uint64_t packed_bytes(DType type, uint32_t n, uint32_t k) {
    const uint64_t tiles = (uint64_t{n} + kTileRows - 1) / kTileRows;
    return tiles * rows16_layout(type, k).tile_bytes;
}

void pack(const WeightView& from, std::byte* to, WorkRange tiles) {
    const Shape& shape = shape_of(from.type);
    const Rows16Layout layout = rows16_layout(from.type, from.k);
    const uint64_t row_bytes = dtype_bytes(from.type, from.k);
    for (uint32_t index = tiles.begin; index < tiles.end; ++index) {
        auto* tile = reinterpret_cast<uint8_t*>(to) + index * layout.tile_bytes;
        std::memset(tile, 0, layout.tile_bytes);
        for (uint32_t lane = 0; lane < kTileRows; ++lane) {
            const uint32_t row = index * kTileRows + lane;
            if (row >= from.n) break;
            const auto* bytes = reinterpret_cast<const uint8_t*>(from.data) + row * row_bytes;
            blocks::with_format(static_cast<int>(from.type), [&](auto decode, blocks::Format) {
                for (uint32_t g = 0; g < from.k / 32; ++g) {
                    blocks::Group group;
                    decode(bytes, g, group);
                    store_group(shape, layout, group, g, lane, tile);
                }
            });
        }
    }
}

constexpr Packing kRows16 = {"rows16", packed_bytes, pack, kTileRows};

}  // namespace

std::optional<PackedFormat> packed_format(DType type) {
    const Shape* shape = find_shape(type);
    return shape ? std::optional(shape->format) : std::nullopt;
}

Rows16Layout rows16_layout(DType type, uint32_t k) {
    const Shape& shape = shape_of(type);
    const uint64_t scales = padded(uint64_t{k} / shape.scale_block * kTileRows * 2);
    const uint64_t subs =
        shape.sub_block == 0 ? 0 : padded(uint64_t{k} / shape.sub_block * kTileRows);
    Rows16Layout layout{};
    layout.scales_at = 0;
    layout.mins_at = scales;
    layout.sub_scales_at = layout.mins_at + (shape.has_mins ? scales : 0);
    layout.sub_mins_at = layout.sub_scales_at + subs;
    layout.quants_at = layout.sub_mins_at + (shape.has_mins ? subs : 0);
    layout.tile_bytes = layout.quants_at + uint64_t{k} / 32 * (shape.is_nibbles ? 256 : 512);
    return layout;
}

const Packing& rows16_packing() {
    return kRows16;
}

}  // namespace strata::cpu
