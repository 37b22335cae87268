// Builds the Graph of a model and checks on the way that the file holds every tensor the model
// needs, in the shape and in a type it can use, and none that it would have to ignore.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/gguf/file.h"
#include "engine/model/graph.h"
#include "engine/model/hparams.h"

namespace strata {

// Tensor names are given without "blk.N." and ".weight": in layer 3, "attn_q" is
// blk.3.attn_q.weight. Problems are collected; finish() reports them together.
class GraphBuilder {
  public:
    GraphBuilder(const gguf::File& file, const Hparams& hparams);

    void begin_layer(uint32_t index);
    void end_layers();

    ValueId embed(std::string_view tensor);
    ValueId norm(ValueId x, std::string_view tensor);        // over the whole row
    ValueId norm_heads(ValueId x, std::string_view tensor);  // over each head
    // [rows, width of x] -> [rows, n]. Adds the tensor's ".bias" where the file has one.
    ValueId matmul(ValueId x, std::string_view tensor, uint32_t n);

    struct Qkv {
        ValueId q, k, v;
    };
    // Projections to queries, keys and values from attn_q, attn_k, attn_v or one attn_qkv.
    Qkv qkv(ValueId x);

    void use_rope(bool neox, std::string_view factors_tensor);  // factors: empty = never
    void rope(ValueId x);
    ValueId attention(const Qkv& qkv);
    ValueId swiglu(ValueId gate, ValueId up);
    void add(ValueId x, ValueId y);
    ValueId gather(ValueId x);
    // Output head: tensor "output", or the embedding table where the file has none.
    ValueId head(ValueId x, std::string_view embedding_tensor);

    // Throws Error "model.tensor_missing", "model.tensor_shape", "model.tensor_type" or
    // "model.tensor_unexpected" whose text lists what is wrong (at most eight entries).
    Graph finish(ValueId logits);

  private:
    struct Problem {
        ErrorKind kind;
        Reason reason;
    };

    std::string full_name(std::string_view tensor, std::string_view suffix) const;
    TensorSlice matrix(const std::string& name, uint64_t k, uint64_t n);
    TensorSlice vector(const std::string& name, uint64_t elements);
    TensorSlice optional_vector(const std::string& name, uint64_t elements);
    TensorSlice take(const std::string& name, std::string_view needed);
    void check_type(const gguf::TensorInfo& tensor, bool is_vector);
    void add_problem(ErrorKind kind, std::string code, std::string text);
    void check_unexpected();
    ValueId new_value(uint32_t width, bool gathered);
    ValueId add_matmul(ValueId x, TensorSlice weight, TensorSlice bias);
    Node& add_node(NodeKind kind);

    const gguf::File& file_;
    const Hparams& hp_;
    Graph graph_;
    int32_t layer_ = -1;
    std::vector<bool> used_;  // per tensor of the file
    std::vector<Problem> problems_;
};

}  // namespace strata
