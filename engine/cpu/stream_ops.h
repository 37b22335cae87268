// What the stream family's files of one instruction set export: plain functions over plain structs,
// under the rules of isa_ops.h.
#pragma once

#include <stdint.h>

namespace strata::cpu {

// Rows of `streams` vectors of `width` side by side.
struct StreamArgs {
    const float* x;
    const float* y;
    float* out;
    uint32_t streams, width;
};

// out = silu(x * scale), rows of `width`.
struct SiluArgs {
    const float* x;
    float* out;
    uint32_t width;
    float scale;
};

// Ranges are of rows. Shapes as in engine/plan/op.h.
struct StreamOps {
    void (*silu)(const SiluArgs&, uint32_t begin, uint32_t end);
    void (*mix)(const StreamArgs&, uint32_t begin, uint32_t end);
    void (*add)(const StreamArgs&, uint32_t begin, uint32_t end);
    void (*scores)(const StreamArgs&, uint32_t begin, uint32_t end);
    void (*scale)(const StreamArgs&, uint32_t begin, uint32_t end);
};

// Defined only where the processor family has the instruction set.
const StreamOps& stream_ops_portable();
const StreamOps& stream_ops_avx2();
const StreamOps& stream_ops_avx512();
const StreamOps& stream_ops_neon();

}  // namespace strata::cpu
