#include "engine/cpu/rows16.h"

#include <algorithm>
#include <array>
#include <bit>
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
    uint32_t bits;       // of a code
    const std::array<uint8_t, 16>* values = nullptr;
};

using Values = std::array<uint8_t, 16>;  // 128 + value

constexpr Values values_from(const uint8_t (&codes)[16], int zero) {
    Values values{};
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<uint8_t>(codes[i] + 128 - zero);
    return values;
}

// Eight magnitudes first, first + step, ... last, and their negatives.
constexpr Values signed_values(int first, int step, int last) {
    Values values{};
    for (int i = 0; i < 8; ++i) {
        const int magnitude = i == 7 ? last : first + step * i;
        values[static_cast<size_t>(i)] = static_cast<uint8_t>(128 + magnitude);
        values[static_cast<size_t>(i) + 8] = static_cast<uint8_t>(128 - magnitude);
    }
    return values;
}

constexpr Values kIq4Values = values_from(blocks::kIq4Codes, 128);
constexpr Values kE2m1Values = values_from(blocks::kE2m1Codes, 12);
constexpr Values kIq3XxsValues = signed_values(4, 8, 62);
constexpr Values kIq3SValues = signed_values(1, 2, 15);

constexpr std::array kShapes = {
    Shape{DType::Q4_0, kPackedQ4_0, 32, false, 0, 4},
    Shape{DType::Q4_1, kPackedQ4_1, 32, true, 0, 4},
    Shape{DType::Q5_0, kPackedQ5_0, 32, false, 0, 8},
    Shape{DType::Q5_1, kPackedQ5_1, 32, true, 0, 8},
    Shape{DType::Q8_0, kPackedQ8_0, 32, false, 0, 8},
    Shape{DType::Q2_K, kPackedQ2_K, 256, true, 16, 2},
    Shape{DType::Q3_K, kPackedQ3_K, 256, false, 16, 3},
    Shape{DType::Q4_K, kPackedQ4_K, 256, true, 32, 4},
    Shape{DType::Q5_K, kPackedQ5_K, 256, true, 32, 8},
    Shape{DType::Q6_K, kPackedQ6_K, 256, false, 16, 8},
    Shape{DType::Q1_0, kPackedSigns, 128, false, 0, 1},
    Shape{DType::Q2_0, kPackedPairs, 64, false, 0, 2},
    Shape{DType::TQ1_0, kPackedPairs, 256, false, 0, 2},
    Shape{DType::TQ2_0, kPackedPairs, 256, false, 0, 2},
    Shape{DType::IQ4_NL, kPackedTable, 32, false, 0, 4, &kIq4Values},
    Shape{DType::MXFP4, kPackedTableBf16, 32, false, 0, 4, &kE2m1Values},
    Shape{DType::NVFP4, kPackedTableHalves, 16, false, 0, 4, &kE2m1Values},
    Shape{DType::IQ3_XXS, kPackedTableSub, 256, false, 32, 4, &kIq3XxsValues},
    Shape{DType::IQ3_S, kPackedTableSub, 256, false, 32, 4, &kIq3SValues},
    Shape{DType::IQ4_XS, kPackedTableSub, 256, false, 32, 4, &kIq4Values},
    Shape{DType::IQ1_S, kPackedBytesSub, 256, false, 16, 8},
    Shape{DType::IQ1_M, kPackedBytesSub, 256, false, 16, 8},
    Shape{DType::IQ2_XXS, kPackedBytesSub, 256, false, 16, 8},
    Shape{DType::IQ2_XS, kPackedBytesSub, 256, false, 16, 8},
    Shape{DType::IQ2_S, kPackedBytesSub, 256, false, 16, 8},
};

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

// Places of the values in a table, by a format's codes.
using Places = std::array<uint8_t, 256>;

Places places_of(const Values& values, int zero) {
    Places places{};
    for (size_t i = values.size(); i-- > 0;)  // the first of equal values
        places[static_cast<uint8_t>(values[i] - 128 + zero)] = static_cast<uint8_t>(i);
    return places;
}

// Where the codes of one lane of a tile go.
struct Lane {
    const Shape& shape;
    const Rows16Layout& layout;
    uint8_t* tile;
    uint32_t index;
};

template <uint32_t kBits>
void store_codes(const uint8_t* q, uint8_t* chunks) {
    constexpr uint32_t kWidth = kBits == 3 ? 2 : kBits;
    for (uint32_t c = 0; c < kWidth; ++c) {
        for (uint32_t j = 0; j < 4; ++j) {
            uint32_t byte = 0;
            for (uint32_t place = 0; place < 8 / kWidth; ++place)
                byte |= (q[4 * (c + kWidth * place) + j] & ((1u << kWidth) - 1))
                        << (kWidth * place);
            chunks[64 * c + j] = static_cast<uint8_t>(byte);
        }
    }
    if constexpr (kBits == 3) {
        for (uint32_t j = 0; j < 4; ++j) {
            uint32_t byte = 0;
            for (uint32_t i = 0; i < 8; ++i) byte |= ((q[4 * i + j] >> 2) & 1u) << i;
            chunks[128 + j] = static_cast<uint8_t>(byte);
        }
    }
}

void store_codes(const Lane& lane, const uint8_t* q, uint32_t g) {
    uint8_t* const chunks =
        lane.tile + lane.layout.quants_at + uint64_t{g} * 64 * lane.shape.bits + 4 * lane.index;
    switch (lane.shape.bits) {
        case 1:
            return store_codes<1>(q, chunks);
        case 2:
            return store_codes<2>(q, chunks);
        case 3:
            return store_codes<3>(q, chunks);
        case 4:
            return store_codes<4>(q, chunks);
        default:
            for (uint32_t c = 0; c < 8; ++c) std::memcpy(chunks + 64 * c, q + 4 * c, 4);
    }
}

void store_scales(const Lane& lane, const blocks::Group& group, uint32_t g) {
    const Shape& shape = lane.shape;
    uint8_t* const tile = lane.tile;
    if (shape.scale_block == 16) {
        for (uint32_t h = 0; h < 2; ++h) {
            const uint64_t at = (uint64_t{g} * 2 + h) * kTileRows + lane.index;
            store_u16(tile + lane.layout.scales_at + 2 * at, group.d[h]);
        }
    } else {
        const uint64_t at = uint64_t{g >> lane.layout.scale_shift} * kTileRows + lane.index;
        store_u16(tile + lane.layout.scales_at + 2 * at, group.d[0]);
        if (shape.has_mins) {
            const uint16_t sign = shape.sub_block != 0 ? 0x8000 : 0;  // K formats subtract theirs
            const auto min = static_cast<uint16_t>(group.m ^ sign);
            store_u16(tile + lane.layout.mins_at + 2 * at, min);
        }
    }
    if (shape.sub_block == 0) return;
    const uint32_t subs = 32 / shape.sub_block;
    for (uint32_t h = 0; h < subs; ++h) {
        const uint64_t at = (uint64_t{g} * subs + h) * kTileRows + lane.index;
        tile[lane.layout.sub_scales_at + at] = static_cast<uint8_t>(group.sub_scale[h]);
        if (shape.has_mins)
            tile[lane.layout.sub_mins_at + at] = static_cast<uint8_t>(group.sub_min[h]);
    }
}

void pack_tile(const WeightView& from,
               const Shape& shape,
               const Rows16Layout& layout,
               uint32_t index,
               uint8_t* tile) {
    const uint64_t row_bytes = dtype_bytes(from.type, from.k);
    const uint32_t begin = index * kTileRows;
    const uint32_t rows = from.n - begin < kTileRows ? from.n - begin : kTileRows;
    blocks::with_format(
        static_cast<int>(from.type), [&](auto decode, const blocks::Format& format) {
            Places places{};
            if (shape.values) places = places_of(*shape.values, format.zero);
            for (uint32_t row = 0; row < rows; ++row) {
                const auto* bytes =
                    reinterpret_cast<const uint8_t*>(from.data) + (begin + row) * row_bytes;
                const Lane lane{shape, layout, tile, row};
                for (uint32_t g = 0; g < from.k / 32; ++g) {
                    blocks::Group group;
                    decode(bytes, g, group);
                    if (shape.values) {
                        for (uint8_t& code : group.q) code = places[code];
                    } else if (shape.bits == 1) {
                        for (uint8_t& code : group.q) code = code >> 1;
                    }
                    store_codes(lane, group.q, g);
                    store_scales(lane, group, g);
                }
            }
        });
}

uint64_t packed_bytes(DType type, uint32_t n, uint32_t k) {
    const uint64_t tiles = (uint64_t{n} + kTileRows - 1) / kTileRows;
    return tiles * rows16_layout(type, k).tile_bytes;
}

void pack(const WeightView& from, std::byte* to, WorkRange tiles) {
    const Shape& shape = shape_of(from.type);
    const Rows16Layout layout = rows16_layout(from.type, from.k);
    for (uint32_t index = tiles.begin; index < tiles.end; ++index) {
        auto* tile = reinterpret_cast<uint8_t*>(to) + index * layout.tile_bytes;
        std::memset(tile, 0, layout.tile_bytes);
        pack_tile(from, shape, layout, index, tile);
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
    layout.tile_bytes = layout.quants_at + uint64_t{k} / 32 * 64 * shape.bits;
    layout.values = shape.values ? shape.values->data() : nullptr;
    blocks::with_format(static_cast<int>(type),
                        [&](auto, const blocks::Format& format) { layout.unit = format.unit; });
    layout.scale_shift =
        static_cast<uint32_t>(std::countr_zero(std::max(1u, shape.scale_block / 32)));
    return layout;
}

void rows16_unpack_tile(const WeightView& from, uint32_t index, uint8_t* tile) {
    pack_tile(from, shape_of(from.type), rows16_layout(from.type, from.k), index, tile);
}

const Packing& rows16_packing() {
    return kRows16;
}

}  // namespace strata::cpu
