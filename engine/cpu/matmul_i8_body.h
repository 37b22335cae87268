// Int8 matmul over weights packed in tiles of 16 rows (rows16.h), for whatever lanes the including
// file chose.
//
// out[r, o] = sum over blocks g of 32 k, in ascending order, of
//     f32(sum_i (q[o, i] - zero) * a[r, i]) * (dw[o, g] * da[r, g])  [+ min[o, g] * (da * sum_a)]
// (of formats with scales of 16 weights: first half, second half, then their minimums).
// The inner sum is exact in int32, the outer one is a chain of fused multiply-adds, one per (row,
// output): the number of rows in a tile, of tiles in a range and of threads cannot change it.
// Tile: 16 outputs x up to kRowsMax rows share unpacked codes. Bytes moved: the packed weights once
// per launch, the activations once per tile of outputs (from L2).
#pragma once

#include "engine/cpu/isa_ops.h"

namespace strata::cpu {
namespace {

// What of a packed format the code of its kernel depends on.
struct PackedForm {
    int bits;      // of a stored code
    int zero;      // of a code, of 128 + value where there is a table
    int code_max;  // likewise
    int sub;       // weights of one sub-scale, 0 if there is none
    bool has_min;
    bool has_table;
    bool is_bf16;    // scales are bf16
    bool is_halved;  // scales are of 16 weights
};
constexpr PackedForm kForms[kPackedFormatCount] = {
    {4, 8, 15, 0, false, false, false, false},     // Q4_0
    {4, 0, 15, 0, true, false, false, false},      // Q4_1
    {8, 16, 31, 0, false, false, false, false},    // Q5_0
    {8, 0, 31, 0, true, false, false, false},      // Q5_1
    {8, 128, 255, 0, false, false, false, false},  // Q8_0
    {2, 0, 3, 16, true, false, false, false},      // Q2_K
    {3, 4, 7, 16, false, false, false, false},     // Q3_K
    {4, 0, 15, 32, true, false, false, false},     // Q4_K
    {8, 0, 31, 32, true, false, false, false},     // Q5_K
    {8, 32, 63, 16, false, false, false, false},   // Q6_K
    {1, 1, 2, 0, false, false, false, false},      // Signs
    {2, 1, 3, 0, false, false, false, false},      // Pairs
    {4, 128, 255, 0, false, true, false, false},   // Table
    {4, 128, 255, 0, false, true, true, false},    // TableBf16
    {4, 128, 255, 0, false, true, false, true},    // TableHalves
    {4, 128, 255, 32, false, true, false, false},  // TableSub
    {8, 64, 127, 16, false, false, false, false},  // BytesSub
};

template <int kFormat>
struct PackedTraits {
    static constexpr PackedForm kForm = kForms[kFormat];
    // The two halves of a group have scales of their own.
    static constexpr bool kIsSplit = kForm.sub == 16 || kForm.is_halved;
    // Lanes with kSignedBytes take codes of zero point 128 as signed bytes: nothing to correct.
    static constexpr int kZero = Tile::kSignedBytes && kForm.zero == 128 ? 0 : kForm.zero;
    static constexpr uint32_t kGroupBytes = 64 * kForm.bits;
};

// Scales and minimums of 16 outputs, of both halves of the group where they differ.
struct GroupScales {
    Tile::F scale[2];
    Tile::F min[2];
};

template <class Traits>
inline Tile::F load_scale(const uint8_t* at) {
    if constexpr (Traits::kForm.is_bf16)
        return Tile::load_bf16(at);
    else
        return Tile::load_f16(at);
}

template <class Traits>
inline GroupScales load_scales(const Rows16Layout& layout, const uint8_t* tile, uint32_t g) {
    constexpr PackedForm kForm = Traits::kForm;
    GroupScales out;
    const uint32_t block = g >> layout.scale_shift;
    if constexpr (kForm.is_halved) {
        out.scale[0] = load_scale<Traits>(tile + layout.scales_at + 64u * g);
        out.scale[1] = load_scale<Traits>(tile + layout.scales_at + 64u * g + 32);
    } else {
        out.scale[0] = out.scale[1] = load_scale<Traits>(tile + layout.scales_at + 32u * block);
    }
    out.min[0] = out.min[1] = Tile::zero();
    if constexpr (kForm.has_min)
        out.min[0] = out.min[1] = Tile::load_f16(tile + layout.mins_at + 32u * block);
    if constexpr (kForm.sub != 0) {
        constexpr uint32_t kBytes = kForm.sub == 16 ? 32 : 16;
        const uint8_t* subs = tile + layout.sub_scales_at + kBytes * g;
        const uint8_t* sub_mins = tile + layout.sub_mins_at + kBytes * g;
        const Tile::F unit = Tile::set1(layout.unit);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < kBytes / 16; ++h) {
            out.scale[h] = Tile::mul(out.scale[h], Tile::mul(unit, Tile::load_i8(subs + 16 * h)));
            if constexpr (kForm.has_min)
                out.min[h] = Tile::mul(out.min[h], Tile::load_i8(sub_mins + 16 * h));
        }
    }
    return out;
}

// Codes kIndex to 7 of a group from its chunks of 64 bytes. Of codes of fewer than 8 bits, chunk c
// holds those of c, c + chunks, ...; the third bits of Q3_K have a chunk of their own.
template <class Traits, int kIndex>
inline void unpack(const Tile::Q* chunks, Tile::Q* q) {
    if constexpr (kIndex < 8) {
        constexpr int kBits = Traits::kForm.bits;
        constexpr int kWidth = kBits == 3 ? 2 : kBits;
        constexpr int kPlace = kIndex / kWidth * kWidth;
        const Tile::Q from = chunks[kIndex % kWidth];
        if constexpr (kBits == 8)
            q[kIndex] = from;
        else if constexpr (kBits == 1)
            q[kIndex] = Tile::bits<kPlace - 1, 2>(from);  // 0 or 2, for -1 or 1
        else
            q[kIndex] = Tile::bits<kPlace, (1 << kWidth) - 1>(from);
        if constexpr (kBits == 3)
            q[kIndex] = Tile::either(q[kIndex], Tile::bits<kIndex - 2, 4>(chunks[2]));
        unpack<Traits, kIndex + 1>(chunks, q);
    }
}

template <class Traits>
inline void load_codes(const uint8_t* at, Tile::Q table, Tile::Q* q) {
    Tile::Q chunks[Traits::kForm.bits];
#pragma GCC unroll 8
    for (int c = 0; c < Traits::kForm.bits; ++c) chunks[c] = Tile::load(at + 64 * c);
    unpack<Traits, 0>(chunks, q);
    if constexpr (Traits::kForm.has_table) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) q[i] = Tile::lookup(table, q[i]);
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
    constexpr int kCodeMax = Traits::kForm.code_max;
    constexpr int kZero = Traits::kZero;
    const Tile::F da = Tile::set1(act_scale);
    if constexpr (Traits::kIsSplit) {
        Tile::I low = Tile::dot<4, kCodeMax>(q, act);
        Tile::I high = Tile::dot<4, kCodeMax>(q + 4, act + 16);
        if constexpr (kZero != 0) {
            low = Tile::add_pair(low, act_sums, -kZero, 0);
            high = Tile::add_pair(high, act_sums, 0, -kZero);
        }
        acc = Tile::fma(Tile::to_f32(low), Tile::mul(w.scale[0], da), acc);
        acc = Tile::fma(Tile::to_f32(high), Tile::mul(w.scale[1], da), acc);
        if constexpr (Traits::kForm.has_min) {
            const Tile::F first = Tile::to_f32(Tile::add_pair(Tile::zero_i(), act_sums, 1, 0));
            const Tile::F second = Tile::to_f32(Tile::add_pair(Tile::zero_i(), act_sums, 0, 1));
            acc = Tile::fma(w.min[0], Tile::mul(first, da), acc);
            acc = Tile::fma(w.min[1], Tile::mul(second, da), acc);
        }
        return acc;
    } else {
        Tile::I sum = Tile::dot<8, kCodeMax>(q, act);
        if constexpr (kZero != 0) sum = Tile::add_pair(sum, act_sums, -kZero, -kZero);
        acc = Tile::fma(Tile::to_f32(sum), Tile::mul(w.scale[0], da), acc);
        if constexpr (Traits::kForm.has_min) {
            const Tile::F total = Tile::to_f32(Tile::add_pair(Tile::zero_i(), act_sums, 1, 1));
            acc = Tile::fma(w.min[0], Tile::mul(total, da), acc);
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
    Tile::Q table{};
    if constexpr (Traits::kForm.has_table) table = Tile::load_table(a.layout.values);
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
        load_codes<Traits>(codes, table, q);
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
        tile_all_rows<kFormat, Tile::kRowsMax>(a, packed, 0, a.first_output + 16 * tile);
    }
}

}  // namespace
}  // namespace strata::cpu
