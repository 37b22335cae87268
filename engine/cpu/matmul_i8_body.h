// Int8 matmul over weights packed in tiles of 16 rows (rows16.h), for whatever lanes the including
// file chose.
//
// out[r, o] = sum over blocks g of 32 k, in ascending order, of
//     f32(sum_i (q[o, i] - zero) * a[r, i]) * (dw[o, g] * da[r, g])  [+ min[o, g] * (da * sum_a)]
// The inner sum is exact in int32, the outer one is a chain of fused multiply-adds, one per (row,
// output): the number of rows in a tile, of tiles in a range and of threads cannot change it.
// Tile: 16 outputs x up to kRowsMax rows share unpacked codes. Bytes moved: the packed weights once
// per launch, the activations once per tile of outputs (from L2).
#pragma once

#include "engine/cpu/isa_ops.h"

namespace strata::cpu {
namespace {

template <int kFormat>
struct PackedTraits {
    static constexpr bool kIsNibbles =
        kFormat == kPackedQ4_0 || kFormat == kPackedQ4_1 || kFormat == kPackedQ4_K;
    static constexpr bool kIsK = kFormat == kPackedQ4_K || kFormat == kPackedQ5_K;
    static constexpr bool kIsQ6 = kFormat == kPackedQ6_K;
    static constexpr bool kHasMin = kFormat == kPackedQ4_1 || kFormat == kPackedQ5_1 || kIsK;
    static constexpr int kCodeMax =
        kIsNibbles ? 15 : (kFormat == kPackedQ8_0 ? 255 : (kIsQ6 ? 63 : 31));
    static constexpr int kFileZero = kFormat == kPackedQ4_0   ? 8
                                     : kFormat == kPackedQ5_0 ? 16
                                     : kFormat == kPackedQ8_0 ? 128
                                     : kIsQ6                  ? 32
                                                              : 0;
    // Lanes with kSignedBytes take codes of zero point 128 as signed bytes: nothing to correct.
    static constexpr int kZero = Tile::kSignedBytes && kFileZero == 128 ? 0 : kFileZero;
    static constexpr uint32_t kGroupBytes = kIsNibbles ? 256 : 512;
};

// Scales (of both halves of the group where they differ) and minimums of 16 outputs.
struct GroupScales {
    Tile::F scale[2];
    Tile::F min;
};

template <class Traits>
inline GroupScales load_scales(const Rows16Layout& layout, const uint8_t* tile, uint32_t g) {
    GroupScales out;
    const uint32_t block = Traits::kIsK || Traits::kIsQ6 ? g / 8 : g;
    out.scale[0] = Tile::load_f16(tile + layout.scales_at + 32u * block);
    out.scale[1] = out.scale[0];
    out.min = Tile::zero();
    if constexpr (Traits::kHasMin) out.min = Tile::load_f16(tile + layout.mins_at + 32u * block);
    if constexpr (Traits::kIsK) {
        out.scale[0] =
            Tile::mul(out.scale[0], Tile::load_u8(tile + layout.sub_scales_at + 16u * g));
        out.min = Tile::mul(out.min, Tile::load_u8(tile + layout.sub_mins_at + 16u * g));
    }
    if constexpr (Traits::kIsQ6) {
        const uint8_t* sub = tile + layout.sub_scales_at + 32u * g;
        out.scale[0] = Tile::mul(out.scale[0], Tile::load_i8(sub));
        out.scale[1] = Tile::mul(out.scale[1], Tile::load_i8(sub + 16));
    }
    return out;
}

template <class Traits>
inline void load_codes(const uint8_t* at, Tile::Q* q) {
    if constexpr (Traits::kIsNibbles) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const Tile::Q packed = Tile::load(at + 64 * c);
            q[c] = Tile::low(packed);
            q[c + 4] = Tile::high(packed);
        }
    } else {
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c) q[c] = Tile::load(at + 64 * c);
    }
}

// Adds one group of one row to its accumulator.
template <class Traits>
inline Tile::F add_group(Tile::F acc,
                         const Tile::Q* q,
                         const GroupScales& w,
                         const int8_t* act,
                         float act_scale,
                         int32_t act_sums) {
    const Tile::F da = Tile::set1(act_scale);
    if constexpr (Traits::kIsQ6) {
        Tile::I low = Tile::dot<4, Traits::kCodeMax>(q, act);
        Tile::I high = Tile::dot<4, Traits::kCodeMax>(q + 4, act + 16);
        low = Tile::add_pair(low, act_sums, -Traits::kZero, 0);
        high = Tile::add_pair(high, act_sums, 0, -Traits::kZero);
        acc = Tile::fma(Tile::to_f32(low), Tile::mul(w.scale[0], da), acc);
        return Tile::fma(Tile::to_f32(high), Tile::mul(w.scale[1], da), acc);
    } else {
        Tile::I sum = Tile::dot<8, Traits::kCodeMax>(q, act);
        if constexpr (Traits::kZero != 0)
            sum = Tile::add_pair(sum, act_sums, -Traits::kZero, -Traits::kZero);
        acc = Tile::fma(Tile::to_f32(sum), Tile::mul(w.scale[0], da), acc);
        if constexpr (Traits::kHasMin) {
            const Tile::F total = Tile::to_f32(Tile::add_pair(Tile::zero_i(), act_sums, 1, 1));
            acc = Tile::fma(w.min, Tile::mul(total, da), acc);
        }
        return acc;
    }
}

constexpr uint64_t kPrefetchBytes = 4096;

// kRows rows from `row` on, against one tile of 16 outputs from `output` on.
template <int kFormat, int kRows>
inline void tile_rows(const MatmulI8Args& a, const uint8_t* tile, uint32_t row, uint32_t output) {
    using Traits = PackedTraits<kFormat>;
    const uint32_t groups = a.k / 32;
    const int8_t* values = a.values + uint64_t{row} * a.k;
    const float* scales = a.scales + uint64_t{row} * groups;
    const int32_t* sums = a.sums + uint64_t{row} * groups;
    const uint8_t* quants = tile + a.layout.quants_at;
    Tile::F acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Tile::zero();
    for (uint32_t g = 0; g < groups; ++g) {
        Tile::Q q[8];
        const uint8_t* codes = quants + uint64_t{g} * Traits::kGroupBytes;
        // Only the first block of rows takes the weights from memory. Hardware prefetchers stop at
        // page ends; asking 4 KiB ahead keeps enough lines in flight (a third more bytes per second
        // for one row). Addresses past the weight are harmless.
        if (row == 0) {
#pragma GCC unroll 8
            for (uint32_t at = 0; at < Traits::kGroupBytes; at += 64)
                __builtin_prefetch(codes + kPrefetchBytes + at);
        }
        load_codes<Traits>(codes, q);
        const GroupScales w = load_scales<Traits>(a.layout, tile, g);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const uint64_t at = static_cast<uint64_t>(r) * groups + g;
            acc[r] = add_group<Traits>(acc[r], q, w, values + 32u * at, scales[at], sums[at]);
        }
    }
    const uint32_t count = a.n - output < 16 ? a.n - output : 16;
    for (int r = 0; r < kRows; ++r) {
        Tile::F result = acc[r];
        if (a.bias) result = Tile::add(result, Tile::load_n(a.bias + output, count));
        Tile::store_n(
            a.out + (uint64_t{row} + static_cast<uint32_t>(r)) * a.n + output, result, count);
    }
}

// Takes the rows in blocks of kRows, then the rest in blocks of half the size.
template <int kFormat, int kRows>
inline void tile_all_rows(const MatmulI8Args& a,
                          const uint8_t* tile,
                          uint32_t row,
                          uint32_t output) {
    for (; row + kRows <= a.rows; row += kRows) tile_rows<kFormat, kRows>(a, tile, row, output);
    if constexpr (kRows > 1) {
        if (row < a.rows) tile_all_rows<kFormat, kRows / 2>(a, tile, row, output);
    }
}

template <int kFormat>
void matmul_i8(const MatmulI8Args& a, uint32_t begin, uint32_t end) {
    for (uint32_t tile = begin; tile < end; ++tile) {
        const uint8_t* packed = a.packed + tile * a.layout.tile_bytes;
        tile_all_rows<kFormat, Tile::kRowsMax>(a, packed, 0, 16 * tile);
    }
}

}  // namespace
}  // namespace strata::cpu
