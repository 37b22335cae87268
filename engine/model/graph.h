// What a model computes, as a list of layer-level operations over named values: no kernels, no
// buffers, no number of rows. engine/plan turns it into the operations a backend launches.
#pragma once

#include <cstdint>
#include <vector>

namespace strata {

using ValueId = uint32_t;
inline constexpr ValueId kNoValue = UINT32_MAX;
inline constexpr uint32_t kNoTensor = UINT32_MAX;

// Consecutive rows of a matrix [n, k] of a file, or elements of a vector; of a stack of matrices
// [experts, n, k] the same rows of each.
struct TensorSlice {
    uint32_t tensor = kNoTensor;  // index into gguf::File::tensors()
    uint32_t row_begin = 0;
    uint32_t rows = 0;
    uint32_t file = 0;  // of TensorFiles (tensor_files.h): the model's or the drafter's
    uint32_t experts = 1;

    bool is_present() const { return tensor != kNoTensor; }
    bool operator==(const TensorSlice&) const = default;
};

enum class NodeKind : uint8_t {
    Input,        // `out` is given with the step: hidden states of the model, one a row
    Embed,        // token ids -> rows of `weight`
    Norm,         // RMS norm of `x` over groups of `group` elements, times `vector`
    Matmul,       // `x` times rows of `weight`, plus `vector` where present
    Rope,         // rotates `x` in place, `heads` heads
    Attention,    // appends k (`y`) and v (`z`) to the layer's cache; query `x` attends to it
    SwiGlu,       // silu(`x`) * `y`
    Add,          // `x` += `y`
    Concat,       // elements of `x`, then those of `y`, row by row
    Gather,       // the rows of `x` whose logits are wanted
    Slice,        // of each of `heads` groups of `x` `group` elements from `offset`
    SigmoidGate,  // `x` * sigmoid(`y`)
    ShortConv,    // silu of a causal convolution over time of each channel of `x`: `group` taps in
                  // `weight`, `offset` positions apart
    L2Norm,      // makes the first `heads` groups of `group` elements of `x` unit vectors, in place
    DeltaGates,  // decays and steps from projections `x` and `y`, bias `vector`, rates `vector2`
    DeltaRule,   // queries, keys and values `x` with gates `y` through the layer's state
    Route,       // experts that each row chooses by logits `x`, `out` is the routing
    ExpertMatmul,  // `x` times `weight` of the experts of `routing`, `out` in the order of experts
    ExpertSum,     // outputs `x` of the experts of `routing`, weighted, of each row
    GatedAdd,      // `x` += sigmoid(`z`) * `y`, `z` one number a row
    StreamSpread,  // `x` as each of `heads` residual streams
    Silu,          // silu(`x` / `heads`)
    StreamMix,     // mean over the streams of sigmoid(`y`) * `x`
    StreamAdd,     // stream s of `x` += 2 sigmoid(`z`_s / streams) * `y`
    StreamScores,  // of each stream the gate that `x` and `y` give (op.h)
    StreamScale,   // stream s = `y`_s * `x`
    IndexKeys,     // appends raw index keys `x`, and block keys normed by `vector`, to the cache
    SelectTokens,  // what rows with index queries `x` attend to, `out` are masks
    NgramRows,     // token ids -> rows of `weight` that stand for the n-grams that end there, which
                   // are asked for
    TableRows,     // rows `x` of `weight`, side by side
    Scale,         // `x` *= the one element of `vector`
};

struct Node {
    NodeKind kind = NodeKind::Add;
    int32_t layer = -1;  // -1 outside the layers
    ValueId x = kNoValue;
    ValueId y = kNoValue;
    ValueId z = kNoValue;
    ValueId out = kNoValue;      // equals x where the value is changed in place
    ValueId routing = kNoValue;  // ExpertMatmul, ExpertSum; Attention: masks, where rows choose
    TensorSlice weight;          // Embed, Matmul, ExpertMatmul
    TensorSlice vector;          // Norm: gain [group] or, each group its own, [width of x];
                                 // Matmul: bias [rows of weight]; DeltaGates;
                                 // ExpertMatmul: scales [experts]
    TensorSlice vector2;         // DeltaGates
    uint32_t group = 0;          // Norm, Slice, L2Norm, ShortConv; Rope: elements of a head
    uint32_t heads = 0;          // Rope, Slice, L2Norm, streams, tables
    uint32_t offset = 0;         // Slice, ShortConv
};

// One f32 activation, [rows of the step or gathered rows, width]. Behind the choice of experts it
// has `per_row` rows for each of them. A routing has `fixed` elements more (engine/plan/routing.h).
struct Value {
    uint32_t width = 0;
    bool gathered = false;
    uint32_t per_row = 1;
    uint32_t fixed = 0;
};

struct Graph {
    std::vector<Value> values;
    std::vector<Node> nodes;  // in order of execution
    ValueId logits = kNoValue;
    ValueId hidden = kNoValue;  // what drafts start from: what the output head reads, of residual
                                // streams before they are mixed
    bool rope_neox = false;     // rotates pairs (i, i + rope_dims/2) instead of (2i, 2i + 1)
    TensorSlice rope_factors;   // optional: divisors of the rope frequencies [rope_dims / 2]
    bool tiled_heads = false;   // DeltaRule: value head j has key head j % key heads
};

}  // namespace strata
