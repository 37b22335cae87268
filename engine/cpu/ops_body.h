// The table of one instruction set's kernels, from the bodies compiled for its lanes.
#pragma once

#include "engine/cpu/attention_body.h"
#include "engine/cpu/index_body.h"
#include "engine/cpu/matmul_f32_body.h"
#include "engine/cpu/matmul_i8_body.h"
#include "engine/cpu/rows_body.h"

namespace strata::cpu {
namespace {

constexpr IsaOps kIsaOps = {
    {matmul_i8<kPackedQ4_0>,
     matmul_i8<kPackedQ4_1>,
     matmul_i8<kPackedQ5_0>,
     matmul_i8<kPackedQ5_1>,
     matmul_i8<kPackedQ8_0>,
     matmul_i8<kPackedQ2_K>,
     matmul_i8<kPackedQ3_K>,
     matmul_i8<kPackedQ4_K>,
     matmul_i8<kPackedQ5_K>,
     matmul_i8<kPackedQ6_K>,
     matmul_i8<kPackedSigns>,
     matmul_i8<kPackedPairs>,
     matmul_i8<kPackedTable>,
     matmul_i8<kPackedTableBf16>,
     matmul_i8<kPackedTableHalves>,
     matmul_i8<kPackedTableSub>,
     matmul_i8<kPackedBytesSub>},
    matmul_f32,
    rms_norm,
    quantize,
    rms_norm_quantize,
    rope,
    kv_append,
    attention,
    index_append,
    index_blocks,
    index_scores,
    swiglu,
    add,
};

}  // namespace
}  // namespace strata::cpu
