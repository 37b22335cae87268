// What the files of one instruction set export: plain functions over plain structs. Included by
// files that are compiled with -mavx512* and the like, so nothing here may be emitted by the
// compiler with external linkage: no std types, no inline functions, no templates.
#pragma once

#include <stdint.h>

namespace strata::cpu {

// What the tiles of "rows16" hold; the order of IsaOps::matmul_i8. Formats of the same codes and
// scales share one kernel.
enum PackedFormat {
    kPackedQ4_0,
    kPackedQ4_1,
    kPackedQ5_0,
    kPackedQ5_1,
    kPackedQ8_0,
    kPackedQ2_K,
    kPackedQ3_K,
    kPackedQ4_K,
    kPackedQ5_K,
    kPackedQ6_K,
    kPackedSigns,        // Q1_0
    kPackedPairs,        // Q2_0, TQ1_0, TQ2_0
    kPackedTable,        // IQ4_NL: nibbles are places in a table of 16 values
    kPackedTableBf16,    // MXFP4: the same with scales of bf16's range
    kPackedTableHalves,  // NVFP4: the same with scales of 16 weights
    kPackedTableSub,     // IQ3_XXS, IQ3_S, IQ4_XS: the same with sub-scales of 32 weights
    kPackedBytesSub,     // IQ1, IQ2, unpacked for one launch: bytes with sub-scales of 16 weights
    kPackedFormatCount
};

// Limits that matchers and kernels share.
constexpr uint32_t kRowDotOutputs = 4;   // weight rows of one work item of matmul_f32
constexpr uint32_t kRopePairsMax = 256;  // rope_dims / 2
constexpr uint32_t kPage = 32;           // tokens of a KV page
constexpr uint32_t kHeadDimMax = 256;    // of KV heads
constexpr uint32_t kIndexHeadsMax = 16;
constexpr uint32_t kIndexDimMax = 256;
constexpr uint32_t kQueryTileMax = 8;  // upper bound of V::kQueriesMax

// One tile of 16 rows: byte offsets within it, and what kernels of several formats are told; see
// rows16.h.
struct Rows16Layout {
    uint64_t scales_at;      // f16 or bf16 [blocks, 16]
    uint64_t mins_at;        // f16 [blocks, 16], where the format has minimums
    uint64_t sub_scales_at;  // i8 [k / 32 or k / 16, 16], where it has sub-scales
    uint64_t sub_mins_at;    // i8 [same], where it has both
    uint64_t quants_at;      // [k / 32, bits of a code, 64]
    uint64_t tile_bytes;
    const uint8_t* values;  // [16] 128 + value of each nibble, where those are places in a table
    float unit;             // what sub-scales are multiplied by
    uint32_t scale_shift;   // group g has the scale of block g >> scale_shift
};

struct MatmulI8Args {
    const uint8_t* packed;  // [ceil(n / 16)] tiles
    Rows16Layout layout;
    const int8_t* values;  // [rows, k]; these three as in quantize.h
    const float* scales;   // [rows, k / 32]
    const int32_t* sums;   // [rows, k / 32]
    const float* bias;     // [n] or null
    float* out;            // [rows, n]
    uint32_t rows, n, k;
    uint32_t first_output;  // of the first tile of `packed`
};

struct MatmulF32Args {
    const uint8_t* weight;  // [n, k] in the file's layout
    uint64_t row_bytes;
    int ggml_type;
    const float* x;     // [rows, k]
    const float* bias;  // [n] or null
    float* out;         // [rows, n]
    uint32_t rows, n, k;
    float* scratch;  // [4, k]
};

struct NormArgs {
    const float* x;      // [rows, k]
    const float* gain;   // [group], or [k] with gain_step = group
    float* out;          // [rows, k]
    uint32_t k, group;   // group divides k; each group has its own mean
    uint32_t gain_step;  // from a group's gains to the next one's
    float eps;
};

struct QuantizeArgs {
    const float* x;  // [rows, k]
    int8_t* values;
    float* scales;
    int32_t* sums;
    uint32_t k;
};

struct RopeArgs {
    float* x;                   // [rows, heads * head_dim], changed in place
    const uint32_t* positions;  // [rows]
    const float* frequencies;   // [rope_dims / 2]
    uint32_t heads, head_dim, rope_dims;
    bool is_neox;
    float magnitude;  // that rotated elements are multiplied by
};

struct KvArgs {
    void* k;  // [pages, kv_heads, head_dim, 32], f16 or f32
    void* v;  // [pages, kv_heads, 32, head_dim]
    bool is_f32;
    uint32_t kv_heads, head_dim;
    const uint32_t* positions;    // [rows]
    const uint32_t* sequences;    // [rows]
    const uint32_t* page_tables;  // [sequences, page_table_stride]
    uint32_t page_table_stride;
};

struct KvAppendArgs {
    KvArgs kv;
    const float* k;  // [rows, kv_heads * head_dim]
    const float* v;
};

struct AttentionArgs {
    KvArgs kv;
    const float* q;  // [rows, heads * head_dim]
    float* out;      // [rows, heads * head_dim]
    uint32_t rows, heads;
    uint32_t block_rows;  // neighbouring rows of one work item
    float scale;
    float* scratch;         // attention_scratch_floats()
    const uint32_t* masks;  // [rows, mask_words] tokens of each page, or null: all of them
    uint32_t mask_words;
};

// Index keys (engine/plan/index_layout.h); `head_dim` is a multiple of 16.
struct IndexArgs {
    void* keys;    // [pages, 32, head_dim], f16 or f32
    void* blocks;  // [pages, 32 / block_tokens, head_dim]
    bool is_f32;
    uint32_t head_dim, block_tokens;
    const uint32_t* positions;    // [rows]
    const uint32_t* sequences;    // [rows]
    const uint32_t* page_tables;  // [sequences, page_table_stride]
    uint32_t page_table_stride;
};

struct IndexAppendArgs {
    IndexArgs index;
    const float* x;  // [rows, head_dim]
};

struct IndexBlocksArgs {
    IndexArgs index;
    const float* gain;         // [head_dim]
    const float* frequencies;  // [rope_dims / 2]
    uint32_t rope_dims;
    bool is_neox;
    float magnitude;  // of rotated elements
    float eps;
};

struct IndexScoresArgs {
    IndexArgs index;
    const float* q;  // [rows, heads * head_dim]
    uint32_t heads;
    float* scores;  // [complete blocks of the row]
};

// SwiGlu: out = silu(x) * y. Add: out += y.
struct PairArgs {
    const float* x;
    const float* y;
    float* out;
    uint32_t k;
};

// Ranges are of work items: tiles of 16 outputs (matmul_i8), blocks of 4 outputs (matmul_f32),
// (row block, kv_head) with the head fastest (attention), rows (all others).
struct IsaOps {
    void (*matmul_i8[kPackedFormatCount])(const MatmulI8Args&, uint32_t begin, uint32_t end);
    void (*matmul_f32)(const MatmulF32Args&, uint32_t begin, uint32_t end);
    void (*rms_norm)(const NormArgs&, uint32_t begin, uint32_t end);
    void (*quantize)(const QuantizeArgs&, uint32_t begin, uint32_t end);
    // As rms_norm then quantize of each row; NormArgs::out is scratch [k].
    void (*rms_norm_quantize)(const NormArgs&, const QuantizeArgs&, uint32_t begin, uint32_t end);
    void (*rope)(const RopeArgs&, uint32_t begin, uint32_t end);
    void (*kv_append)(const KvAppendArgs&, uint32_t begin, uint32_t end);
    void (*attention)(const AttentionArgs&, uint32_t begin, uint32_t end);
    void (*index_append)(const IndexAppendArgs&, uint32_t begin, uint32_t end);
    void (*index_blocks)(const IndexBlocksArgs&, uint32_t begin, uint32_t end);
    void (*index_scores)(const IndexScoresArgs&, uint32_t row);
    void (*swiglu)(const PairArgs&, uint32_t begin, uint32_t end);
    void (*add)(const PairArgs&, uint32_t begin, uint32_t end);
};

// Defined only where the processor family has the instruction set.
const IsaOps& isa_ops_portable();
const IsaOps& isa_ops_avx2();
const IsaOps& isa_ops_avx512();
const IsaOps& isa_ops_neon();

}  // namespace strata::cpu
