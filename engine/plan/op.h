// What the model asks of a backend: one OpRequest per operation of a step. The registry answers
// each with a kernel or with reasons; planning and running use the same request.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/quant/dtype.h"

namespace strata {

// R = rows of the step. All activations are f32 [R, width] unless said otherwise.
enum class OpKind : uint8_t {
    Embed,            // token ids [R] -> rows of the embedding table [R, n]
    RmsNorm,          // x / sqrt(mean(x^2) + eps) * g per group of `head_dim` (or all of k)
    RmsNormQuantize,  // fused: RmsNorm then Quantize; composition of the two where absent
    Quantize,         // f32 [R, k] -> I8Block [R, k]
    Matmul,           // [R, k] x weight [n, k] -> [R, n]; act is F32 or I8Block
    Rope,             // rotates the first rope_dims of each head of [R, heads * head_dim]
    KvAppend,         // writes k and v rows [R, kv_heads * head_dim] into the pages
    Attention,        // paged causal attention, q [R, heads * head_dim] -> [R, heads * head_dim]
    SwiGlu,           // silu(gate) * up, both [R, k]
    Add,              // residual: x += y, both [R, k]
    Concat,           // x [R, k], y [R, n - k] -> [R, n], row by row
    GatherRows,       // copies the rows that need logits: [R, k] -> [L, k]
    Slice,        // of each of `heads` groups of x [R, k] n / heads values from `offset`: [R, n]
    SigmoidGate,  // x * sigmoid(y), both [R, k]
    ShortConv,    // silu of a causal depthwise convolution over time of `taps`: [R, k] -> [R, k]
    L2Norm,       // x / sqrt(sum(x^2) + 1e-6) of the first `heads` groups of head_dim, in place
    DeltaGates,   // x, y [R, heads] -> e^(rate softplus(x + bias)), sigmoid(y): [R, 2 * heads]
    DeltaRule,    // gated delta rule over queries, keys, values x [R, k] with gates y: [R, n]
    // Mixtures of experts; U = experts_used, a pair is a row and an expert it chose (routing.h).
    Route,         // logits [R, experts] -> chosen experts and their weights, of a routing
    GroupExperts,  // completes the routing: pairs in the order of experts
    ExpertMatmul,  // [R, k] x weight [experts, n, k] -> [R * U, n] in the order of experts
    ExpertSum,     // [R * U, k] in the order of experts -> [R, k], weighted, by falling weight
    GatedAdd,      // x += sigmoid(gate) * y; x, y [R, k], gate [R, 1]
    // Residual streams: S = `heads` vectors of one width side by side in a row.
    StreamSpread,  // x [R, k] S times side by side: [R, n]
    Silu,          // silu(x / heads), [R, k]
    StreamMix,     // mean over the streams of sigmoid(y) * x; x, y [R, k] -> [R, n]
    StreamAdd,     // stream s += 2 sigmoid(gate_s / S) * x; x [R, k], gates y [R, S], in place
    StreamScores,  // of each stream sigmoid(root(x_s . y_s / sqrt(k / S))), root(t) = sign(t)
                   // sqrt(max(|t|, 1e-6)); x, y [R, k] -> [R, S]
    StreamScale,   // stream s = y_s * x; x [R, k], y [R, S] -> [R, n]
    // Layers whose rows choose what they attend to (index_layout.h).
    IndexAppend,   // writes raw index keys [R, head_dim] into the pages
    IndexBlocks,   // of each block that a row completes: norm of the mean of its keys, rotated
    SelectTokens,  // queries [R, heads * head_dim] -> masks, words [R, mask_words]: the blocks_used
                   // blocks of largest sum of max(0, query . block key), and the last tokens
    // Tables addressed by n-grams of token ids (ngram.h), of which a step reads a few rows.
    NgramRows,  // token ids -> `heads` table rows, words [R, heads]
    FetchRows,  // asks the system for rows x [R, heads] of a table, without waiting for them
    TableRows,  // rows x [R, heads] of a table [k, head_dim], decoded side by side: [R, n]
    Scale,      // x *= s[0], x [R, k] in place
};
inline constexpr int kOpKindCount = 36;

std::string_view op_name(OpKind kind);  // "matmul", "rms_norm", "kv_append", ...

// Bits that change the meaning of an operation. A kernel is found only if it names every bit that
// the request sets, so a new bit disables all kernels until each was looked at.
enum Feature : uint32_t {
    kFeatureRopeNeox = 1u << 0,     // pairs (i, i + rope_dims/2) instead of (2i, 2i+1)
    kFeatureRopeFactors = 1u << 1,  // per-frequency divisors (rope_freqs.weight)
    kFeatureBias = 1u << 2,         // matmul adds a bias [n]
    kFeatureGrouped = 1u << 3,      // RmsNorm per head instead of per row
    kFeatureTiledHeads = 1u << 4,   // DeltaRule: value head j has key head j % kv_heads, instead of
                                    // j / (heads / kv_heads)
    kFeatureRopeMagnitude = 1u << 5,  // rotated elements are multiplied by a constant (YaRN)
    kFeatureExpertOrder = 1u << 8,    // ExpertMatmul: x has a row for each pair, in their order
    kFeatureExpertScale = 1u << 9,    // ExpertMatmul: outputs of expert e times scale [experts][e]
    kFeatureGroupGain = 1u << 10,     // RmsNorm: each group has gains of its own, [k]
    kFeatureDilated = 1u << 11,       // ShortConv: taps are `dilation` rows apart
    kFeatureSelected = 1u << 12,      // Attention: rows attend to the tokens of their masks only
};
std::string_view feature_name(uint32_t bit);

struct OpRequest {
    OpKind kind = OpKind::Add;
    DType weight = DType::None;  // weight operand, where there is one
    DType act = DType::F32;      // activation operand
    DType kv = DType::None;      // KvAppend, Attention
    uint32_t rows = 1;           // largest number of rows the step may have
    uint32_t sequences = 1;      // largest number of sequences that share the step
    uint32_t n = 0;              // output width (Matmul, Embed)
    uint32_t k = 0;              // input width
    uint32_t heads = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t rope_dims = 0;
    uint32_t page_tokens = 0;
    uint32_t taps = 0;          // ShortConv: rows of a sequence that one output sees; NgramRows:
                                // tokens of the longest n-gram
    uint32_t dilation = 0;      // ShortConv with kFeatureDilated
    uint32_t offset = 0;        // Slice
    uint32_t block_tokens = 0;  // of index keys: tokens of a block
    uint32_t blocks_used = 0;   // that a row chooses
    uint32_t mask_words = 0;    // of a row
    uint32_t undo = 0;          // operations with state: last rows of a step that may be taken back
    uint32_t experts = 0;       // of the layer
    uint32_t experts_used = 0;  // that each row chooses
    uint32_t features = 0;      // Feature bits
    // For reports only, never matched:
    std::string tensor;  // name of the weight in the file, or empty
    int32_t layer = -1;
};

// Whether the operation reads a few rows of its weight, which stays in the file and need not be in
// memory.
bool reads_on_demand(OpKind kind);

// One line for reports and errors: "matmul weight=q4_1 act=i8block n=576 k=1536 rows=256
// (blk.0.ffn_down.weight)".
std::string describe(const OpRequest& request);

}  // namespace strata
