// The types of weights that the matmuls of this folder take: the one list of each family.
//   matmul.rows16, expert_matmul.rows16   packed once at load (kPackedTypes)
//   matmul.tile16, expert_matmul.tile16   as in the file, unpacked tile by tile (kTileTypes)
//   matmul.rowdot, expert_matmul.rowdot   any of them and floats, with f32 activations
#pragma once

#include "engine/quant/dtype.h"

namespace strata::cpu {

template <DType... kTypes>
struct DTypes {
    // Calls fn.template operator()<type>() for each, in order.
    template <class Fn>
    static void each(Fn fn) {
        (fn.template operator()<kTypes>(), ...);
    }
};

using FloatTypes = DTypes<DType::F32, DType::F16, DType::BF16>;
using PackedTypes = DTypes<DType::Q4_0,
                           DType::Q4_1,
                           DType::Q5_0,
                           DType::Q5_1,
                           DType::Q8_0,
                           DType::Q2_K,
                           DType::Q3_K,
                           DType::Q4_K,
                           DType::Q5_K,
                           DType::Q6_K,
                           DType::IQ3_XXS,
                           DType::IQ3_S,
                           DType::IQ4_NL,
                           DType::IQ4_XS,
                           DType::Q1_0,
                           DType::Q2_0,
                           DType::TQ1_0,
                           DType::TQ2_0,
                           DType::MXFP4,
                           DType::NVFP4>;
using TileTypes = DTypes<DType::IQ1_S, DType::IQ1_M, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S>;

}  // namespace strata::cpu
