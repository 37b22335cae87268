// Decodes one group of 32 weights of every block format of GGUF files: the one place that knows
// their bit layouts, in the files included here. block_group.h has what a group is, and its
// arithmetic. Layouts follow the block structs documented by GGML (ggml-common.h) and the `gguf`
// package. CPU files of any instruction set, CUDA and Metal compile the same text.
#pragma once

#include "engine/quant/block_group.h"
#include "engine/quant/block_iq.h"
#include "engine/quant/block_k.h"
#include "engine/quant/block_plain.h"

// Choosing a decoder at run time is for the host: kernels of CUDA and Metal name theirs.
#if !defined(__METAL_VERSION__) && !defined(__CUDACC__)
namespace strata {
namespace blocks {
namespace {

// A decoder as a type of its own: each loop over groups is compiled for its format.
template <void (*kDecode)(STRATA_BLOCK_BYTES, uint32_t, Group&)>
struct Decoder {
    void operator()(STRATA_BLOCK_BYTES row, uint32_t g, Group& group) const {
        kDecode(row, g, group);
    }
};

// Calls fn(decoder, format) for a GGML type id; false if it has no block format of files. The only
// switch over formats.
template <class Fn>
inline bool with_format(int ggml_type, Fn&& fn) {
    switch (ggml_type) {
        case 2:
            fn(Decoder<decode_q4_0>{}, Format{8, 0, 1.0f, false});
            return true;
        case 3:
            fn(Decoder<decode_q4_1>{}, Format{0, 1, 1.0f, false});
            return true;
        case 6:
            fn(Decoder<decode_q5_0>{}, Format{16, 0, 1.0f, false});
            return true;
        case 7:
            fn(Decoder<decode_q5_1>{}, Format{0, 1, 1.0f, false});
            return true;
        case 8:
            fn(Decoder<decode_q8_0>{}, Format{128, 0, 1.0f, false});
            return true;
        case 10:
            fn(Decoder<decode_q2_k>{}, Format{0, -1, 1.0f, false});
            return true;
        case 11:
            fn(Decoder<decode_q3_k>{}, Format{4, 0, 1.0f, false});
            return true;
        case 12:
            fn(Decoder<decode_q4_k>{}, Format{0, -1, 1.0f, false});
            return true;
        case 13:
            fn(Decoder<decode_q5_k>{}, Format{0, -1, 1.0f, false});
            return true;
        case 14:
            fn(Decoder<decode_q6_k>{}, Format{32, 0, 1.0f, false});
            return true;
        case 16:
            fn(Decoder<decode_iq2_xxs>{}, Format{64, 0, 0.125f, false});
            return true;
        case 17:
            fn(Decoder<decode_iq2_xs>{}, Format{64, 0, 0.125f, false});
            return true;
        case 18:
            fn(Decoder<decode_iq3_xxs>{}, Format{64, 0, 0.25f, false});
            return true;
        case 19:
            fn(Decoder<decode_iq1_s>{}, Format{64, 0, 0.125f, false});
            return true;
        case 20:
            fn(Decoder<decode_iq4_nl>{}, Format{128, 0, 1.0f, false});
            return true;
        case 21:
            fn(Decoder<decode_iq3_s>{}, Format{16, 0, 1.0f, false});
            return true;
        case 22:
            fn(Decoder<decode_iq2_s>{}, Format{64, 0, 0.125f, false});
            return true;
        case 23:
            fn(Decoder<decode_iq4_xs>{}, Format{128, 0, 1.0f, false});
            return true;
        case 29:
            fn(Decoder<decode_iq1_m>{}, Format{64, 0, 0.125f, false});
            return true;
        case 34:
            fn(Decoder<decode_tq1_0>{}, Format{1, 0, 1.0f, false});
            return true;
        case 35:
            fn(Decoder<decode_tq2_0>{}, Format{1, 0, 1.0f, false});
            return true;
        case 39:
            fn(Decoder<decode_mxfp4>{}, Format{12, 0, 1.0f, true});
            return true;
        case 40:
            fn(Decoder<decode_nvfp4>{}, Format{12, 0, 1.0f, false});
            return true;
        case 41:
            fn(Decoder<decode_q1_0>{}, Format{1, 0, 1.0f, false});
            return true;
        case 42:
            fn(Decoder<decode_q2_0>{}, Format{1, 0, 1.0f, false});
            return true;
        default:
            return false;
    }
}

// k consecutive weights of one row of a block format to f32; k a multiple of the block size.
inline bool row_to_f32(int ggml_type, STRATA_BLOCK_BYTES row, float* out, uint32_t k) {
    return with_format(ggml_type, [&](auto decode, Format format) {
        Group group;
        for (uint32_t g = 0; g < k / 32; ++g) {
            decode(row, g, group);
            group_to_f32(group, format, out + 32u * g);
        }
    });
}

}  // namespace
}  // namespace blocks
}  // namespace strata
#endif
