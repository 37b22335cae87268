// What the recurrent family's files of one instruction set export: plain functions over plain
// structs, under the rules of isa_ops.h.
#pragma once

#include <stdint.h>

#include "engine/backend/state_run.h"

namespace strata::cpu {

constexpr uint32_t kConvBlock = 256;  // channels of one work item of short_conv
constexpr uint32_t kConvTapsMax = 8;
constexpr uint32_t kDeltaColumns = 16;  // values of one work item of delta_rule
constexpr uint32_t kDeltaHeadDimMax = 256;

struct RunArgs {
    float* state;  // slot s at state + s * slot_floats
    uint64_t slot_floats;
    const StateRun* runs;
};

struct ConvArgs {
    RunArgs run;
    const float* x;     // [rows, channels]
    const float* taps;  // [taps, channels], the current row's last
    float* out;         // [rows, channels]
    uint32_t channels, tap_count, dilation, ring_rows;
};

struct DeltaArgs {
    RunArgs run;
    const float* x;      // [rows, queries and keys [kv_heads, dim] each, values [heads, dim]]
    const float* gates;  // [rows, decays [heads], steps [heads]]
    float* out;          // [rows, heads, dim]
    uint32_t heads, kv_heads, dim;
    bool is_tiled;
    float scale;      // of the queries
    uint64_t log_at;  // first float of the logs
    uint64_t log_row_floats;
    uint32_t log_rows;
    float* scratch;  // [dim, kDeltaColumns]
};

struct L2NormArgs {
    float* x;  // [rows, k], changed in place
    uint32_t k, heads, dim;
};

struct GateArgs {
    const float* x;
    const float* y;
    float* out;
    uint32_t k;
};

// Ranges are of work items: (run, block of channels) with the block fastest (short_conv), (run,
// value head, block of columns) with the last fastest (delta_rule), rows (the others).
struct RecurrentOps {
    void (*short_conv)(const ConvArgs&, uint32_t begin, uint32_t end);
    void (*delta_rule)(const DeltaArgs&, uint32_t begin, uint32_t end);
    void (*l2_norm)(const L2NormArgs&, uint32_t begin, uint32_t end);
    void (*sigmoid_gate)(const GateArgs&, uint32_t begin, uint32_t end);
};

// Defined only where the processor family has the instruction set.
const RecurrentOps& recurrent_ops_portable();
const RecurrentOps& recurrent_ops_avx2();
const RecurrentOps& recurrent_ops_avx512();
const RecurrentOps& recurrent_ops_neon();

}  // namespace strata::cpu
