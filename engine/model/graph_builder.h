// Builds the graph of a model, or of its drafter, and checks on the way that the files hold every
// tensor it needs, in the shape it needs, and none that it would have to ignore. Whether a matrix's
// type can be computed with is the question of kernels; vectors are made f32 when they are loaded,
// so their types are checked here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/gguf/file.h"
#include "engine/model/graph.h"
#include "engine/model/hparams.h"
#include "engine/model/tensor_files.h"

namespace strata {

// "[k, n, experts]" of a tensor's dimensions.
std::string shape_text(uint32_t dimensions, const std::array<uint64_t, 4>& shape);

// N of "blk.N.NAME"; nothing for names outside the layers.
std::optional<uint32_t> layer_of(std::string_view name);

// What is built. A drafted model gives the hidden state of every row, where a model alone computes
// only the rows whose logits are wanted.
enum class GraphScope : uint8_t { Model, DraftedModel, Drafter };

// Reason codes of what is wrong with a tensor.
struct TensorCodes {
    const char* missing;
    const char* shape;
    const char* type;
    const char* unexpected;
};

// Tensor names are given without "blk.N." and ".weight": in layer 3, "attn_q" is
// blk.3.attn_q.weight. A drafter's layer lies in the drafter's file where there is one, all other
// tensors in the model's. Problems are collected; finish() reports them together.
class GraphBuilder {
  public:
    GraphBuilder(const TensorFiles& files, const Hparams& hparams, GraphScope scope);

    void begin_layer(uint32_t index);
    void end_layers();

    ValueId embed(std::string_view tensor);
    ValueId norm(ValueId x, std::string_view tensor);        // over the whole row
    ValueId norm_heads(ValueId x, std::string_view tensor);  // over each head
    ValueId norm_groups(ValueId x, std::string_view tensor, uint32_t group);
    // [rows, width of x] -> [rows, n]. Outputs are multiplied by the tensor's ".scale" [1] or get
    // its ".bias" [n] added, where the file has one of these.
    ValueId matmul(ValueId x, std::string_view tensor, uint32_t n);
    struct MatrixRows {
        uint32_t begin, count;
        uint32_t of;  // rows that the tensor has
    };
    // The same by some rows of a tensor that holds several matrices, without copying them.
    ValueId matmul_part(ValueId x, std::string_view tensor, MatrixRows rows);

    struct Qkv {
        ValueId q, k, v;
    };
    // Projections to queries, keys and values from attn_q, attn_k, attn_v or one attn_qkv, whose
    // rows are in this order. `q_width`: where attn_q holds more than queries.
    Qkv qkv(ValueId x);
    Qkv qkv(ValueId x, uint32_t q_width);

    void use_rope(bool neox, std::string_view factors_tensor);  // factors: empty = never
    void rope(ValueId x);
    void rope_groups(ValueId x, uint32_t group);  // of heads of another size
    ValueId attention(const Qkv& qkv, ValueId masks = kNoValue);
    ValueId swiglu(ValueId gate, ValueId up);
    // The dense feed-forward part of the current layer: ffn_down(silu(ffn_gate x) * ffn_up x).
    ValueId feed_forward(ValueId x);
    void add(ValueId x, ValueId y);
    ValueId concat(ValueId x, ValueId y);  // [rows, a], [rows, b] -> [rows, a + b]
    // Of each of `groups` equal groups of a row `width` elements from `offset`, side by side.
    ValueId slice(ValueId x, uint32_t groups, uint32_t offset, uint32_t width);
    ValueId sigmoid_gate(ValueId x, ValueId gate);  // x * sigmoid(gate)

    // Of recurrent layers (delta_net.h).
    bool has(std::string_view tensor) const;  // the file has it, in this layer
    // Says that a layout the file has cannot be told from another one here: finish() will refuse.
    void refuse_layout(std::string_view tensor, std::string_view why);
    bool has_tiled_heads() const { return graph_.tiled_heads; }
    void use_tiled_heads(bool tiled);  // DeltaRule: value head j has key head j % key heads
    struct Taps {
        uint32_t count;
        uint32_t apart = 1;  // positions from one to the next
    };
    ValueId short_conv(ValueId x, std::string_view tensor, Taps taps);
    void l2_norm(ValueId x, uint32_t groups, uint32_t width);  // of the first groups, in place
    // Decays and steps of the heads, from projections [rows, heads]; `rate` goes without ".weight",
    // `bias` is a ".bias".
    ValueId delta_gates(ValueId alpha, ValueId beta, std::string_view bias, std::string_view rate);
    ValueId delta_rule(ValueId qkv, ValueId gates);  // [rows, value heads * head_dim]

    // Of mixtures of experts (moe.h).
    ValueId route(ValueId logits);  // the routing of [rows, experts]
    // [rows, k] or outputs of experts -> of each chosen expert [n], in the order of experts. The
    // tensor is [experts, n, k]; outputs are multiplied by its ".scale" where the file has one.
    ValueId expert_matmul(ValueId x, ValueId routing, std::string_view tensor, uint32_t n);
    ValueId expert_matmul_part(ValueId x,
                               ValueId routing,
                               std::string_view tensor,
                               MatrixRows rows);         // of each expert
    ValueId expert_sum(ValueId x, ValueId routing);      // weighted: [rows, width of x]
    void gated_add(ValueId x, ValueId y, ValueId gate);  // x += sigmoid(gate) * y, gate [rows, 1]

    // Of residual streams (hyper_connection.h): S = hparams.streams.count vectors side by side.
    ValueId spread_streams(ValueId x);                         // [rows, width] -> S copies
    ValueId norm_streams(ValueId x, std::string_view tensor);  // over each stream, gains [S, width]
    ValueId stream_silu(ValueId x);                            // silu(x / S)
    ValueId mix_streams(ValueId x, ValueId gates);             // mean of sigmoid(gates) * x
    void add_streams(ValueId x, ValueId y, ValueId gates);     // x_s += 2 sigmoid(gates_s / S) * y
    ValueId score_streams(ValueId x, ValueId y);               // OpKind::StreamScores: [rows, S]
    ValueId scale_streams(ValueId x, ValueId scores);          // scores_s * x: [rows, S * width]

    // Of attention layers whose rows choose what they attend to (hparams.index).
    void index_keys(ValueId keys, std::string_view norm_tensor);
    ValueId select_tokens(ValueId queries);  // masks for attention()

    // Of a table addressed by n-grams (ngram_table.h).
    ValueId ngram_rows(std::string_view tensor);
    ValueId table_rows(ValueId rows, std::string_view tensor);  // [rows, heads * width of a row]

    // A tensor that this graph does not need although models of its architecture have it.
    void skip(std::string_view tensor);

    // The rows whose logits are wanted; `x` itself in a drafted model, whose head gathers.
    ValueId gather(ValueId x);
    // What drafts start from, where that is not what the output head reads; the rows of it whose
    // logits are wanted.
    ValueId keep_hidden(ValueId x);
    // Output head on hidden state `x`: tensor "output", or the embedding table where the file has
    // none.
    ValueId head(ValueId x, std::string_view embedding_tensor);

    uint32_t layer() const { return static_cast<uint32_t>(layer_); }  // between begin and end

    // Of a drafter, inside its layer (drafter.h). What its layer reads, from a token and a hidden
    // state: [rows, width].
    ValueId draft_input(std::string_view embedding_tensor);
    // The same of residual streams, each from the token and its own part of the hidden state.
    ValueId draft_input_streams(std::string_view embedding_tensor);
    // Output head behind the layer: the layer's own, or the model's.
    ValueId draft_logits(ValueId x, std::string_view embedding_tensor);
    // nextn.eh_proj of both, the token's half first; or the sum of nextn.fc_embd and
    // nextn.fc_hidden of each, as some files have it in two matrices.
    ValueId draft_projection(ValueId token, ValueId hidden, uint32_t n);
    // Norm and output head behind the layer: the layer's own, or those of the model.
    ValueId draft_head(ValueId x, std::string_view norm_tensor, std::string_view embedding_tensor);

    // Throws Error "model.tensor_missing", "model.tensor_shape", "model.tensor_type" or
    // "model.tensor_unexpected", of a drafter "drafter.tensor_missing" and so on, whose text lists
    // what is wrong (at most eight entries).
    Graph finish(ValueId logits);

  private:
    struct Problem {
        ErrorKind kind;
        Reason reason;
    };

    bool is_drafter() const { return scope_ == GraphScope::Drafter; }
    std::string full_name(std::string_view tensor, std::string_view suffix) const;
    uint32_t file_of(std::string_view full_name) const;
    // By its own name or, of the mixer behind a draft layer, by one of those it also goes by.
    const gguf::TensorInfo* find(std::string_view full_name) const;
    // `tensor` of the layer where it is there, else `fallback` outside the layers; in full.
    std::string own_or(std::string_view tensor, std::string_view fallback) const;
    TensorSlice matrix(const std::string& name, uint64_t k, uint64_t n);
    TensorSlice experts(const std::string& name, uint64_t k, uint64_t n);  // [experts, n, k]
    void check_matrix(const gguf::TensorInfo& tensor,
                      const std::array<uint64_t, 4>& shape,
                      const std::string& needed);
    // `in_any_shape`: the elements may lie in the file as a matrix.
    TensorSlice vector(const std::string& name, uint64_t elements, bool in_any_shape = false);
    TensorSlice optional_vector(const std::string& name, uint64_t elements);
    ValueId add_stream_norm(ValueId x, std::string_view tensor, uint32_t group);
    TensorSlice stream_gains(const std::string& name);
    TensorSlice table(std::string_view tensor);
    Node& add_stream_node(NodeKind kind, ValueId x, ValueId out);
    TensorSlice take(const std::string& name, std::string_view needed);
    void add_problem(ErrorKind kind, const char* code, std::string text);
    bool is_foreign(const gguf::TensorInfo& tensor) const;
    void check_unexpected();
    ValueId new_value(const Value& value);
    ValueId new_value(uint32_t width, bool gathered);
    ValueId add_embed(const std::string& table);
    ValueId add_norm(ValueId x, const std::string& gain, uint32_t group);
    // `tensor`: name of the matrix without ".weight", for what stands beside it.
    ValueId add_matmul(ValueId x, TensorSlice weight, const std::string& tensor, MatrixRows rows);
    bool is_input_scale(const gguf::TensorInfo& tensor) const;
    ValueId add_gather(ValueId x);
    ValueId add_head(ValueId x, const std::string& tensor);
    Node& add_node(NodeKind kind);

    TensorFiles files_;
    const Hparams& hp_;
    GraphScope scope_;
    const TensorCodes& codes_;
    uint32_t layer_file_;  // where "blk." tensors lie
    Graph graph_;
    int32_t layer_ = -1;
    std::vector<bool> used_;  // per tensor of the layers' file
    std::vector<Problem> problems_;
};

}  // namespace strata
