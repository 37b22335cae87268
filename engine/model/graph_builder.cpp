#include "engine/model/graph_builder.h"

#include <utility>

#include "engine/base/assert.h"

namespace strata {

namespace {

constexpr size_t kProblemsListed = 8;

std::string shape_text(uint32_t dimensions, const std::array<uint64_t, 4>& shape) {
    std::string text = "[";
    for (uint32_t i = 0; i < dimensions; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return text + "]";
}

std::string matrix_text(uint64_t k, uint64_t n) {
    return "[" + std::to_string(k) + ", " + std::to_string(n) + "]";
}

bool is_weight_type(DType type) {
    return type != DType::None && type != DType::I8Block;
}

bool is_float_type(DType type) {
    return type == DType::F32 || type == DType::F16 || type == DType::BF16;
}

std::string supported_types() {
    std::string text;
    for (uint32_t id = 0; id < 128; ++id) {
        const std::optional<DTypeInfo> info = find_dtype(id);
        if (info && is_weight_type(info->type)) {
            text += (text.empty() ? "" : ", ") + std::string(info->name);
        }
    }
    return text;
}

}  // namespace

GraphBuilder::GraphBuilder(const gguf::File& file, const Hparams& hparams)
    : file_(file), hp_(hparams), used_(file.tensors().size(), false) {}

void GraphBuilder::begin_layer(uint32_t index) {
    layer_ = static_cast<int32_t>(index);
}

void GraphBuilder::end_layers() {
    layer_ = -1;
}

std::string GraphBuilder::full_name(std::string_view tensor, std::string_view suffix) const {
    const std::string block = layer_ < 0 ? "" : "blk." + std::to_string(layer_) + ".";
    return block + std::string(tensor) + std::string(suffix);
}

void GraphBuilder::add_problem(ErrorKind kind, std::string code, std::string text) {
    problems_.push_back({kind, {std::move(code), std::move(text)}});
}

TensorSlice GraphBuilder::take(const std::string& name, std::string_view needed) {
    const gguf::TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
        add_problem(ErrorKind::InvalidRequest,
                    "model.tensor_missing",
                    "tensor " + name + " is missing; needed is " + std::string(needed));
        return {};
    }
    const auto index = static_cast<uint32_t>(tensor - file_.tensors().data());
    used_[index] = true;
    return {index, 0, 0};
}

void GraphBuilder::check_type(const gguf::TensorInfo& tensor, bool is_vector) {
    if (is_vector ? is_float_type(tensor.type) : is_weight_type(tensor.type)) {
        return;
    }
    add_problem(ErrorKind::Unsupported,
                "model.tensor_type",
                "tensor " + tensor.name + " has type " +
                    std::string(ggml_type_name(tensor.ggml_type)) + "; supported are " +
                    (is_vector ? std::string("f32, f16, bf16") : supported_types()));
}

TensorSlice GraphBuilder::matrix(const std::string& name, uint64_t k, uint64_t n) {
    TensorSlice slice = take(name, matrix_text(k, n));
    if (!slice.is_present()) {
        return {};
    }
    const gguf::TensorInfo& tensor = file_.tensors()[slice.tensor];
    if (tensor.dimensions > 2 || tensor.shape[0] != k || tensor.shape[1] != n) {
        add_problem(ErrorKind::InvalidRequest,
                    "model.tensor_shape",
                    "tensor " + name + " has shape " + shape_text(tensor.dimensions, tensor.shape) +
                        "; needed is " + matrix_text(k, n));
    }
    check_type(tensor, false);
    slice.rows = static_cast<uint32_t>(n);
    return slice;
}

TensorSlice GraphBuilder::vector(const std::string& name, uint64_t elements) {
    const std::string needed = "[" + std::to_string(elements) + "]";
    TensorSlice slice = take(name, needed);
    if (!slice.is_present()) {
        return {};
    }
    const gguf::TensorInfo& tensor = file_.tensors()[slice.tensor];
    if (tensor.shape[0] != elements || tensor.elements() != elements) {
        add_problem(ErrorKind::InvalidRequest,
                    "model.tensor_shape",
                    "tensor " + name + " has shape " + shape_text(tensor.dimensions, tensor.shape) +
                        "; needed is " + needed);
    }
    check_type(tensor, true);
    slice.rows = static_cast<uint32_t>(elements);
    return slice;
}

TensorSlice GraphBuilder::optional_vector(const std::string& name, uint64_t elements) {
    return file_.find_tensor(name) == nullptr ? TensorSlice{} : vector(name, elements);
}

ValueId GraphBuilder::new_value(uint32_t width, bool gathered) {
    graph_.values.push_back({width, gathered});
    return static_cast<ValueId>(graph_.values.size() - 1);
}

Node& GraphBuilder::add_node(NodeKind kind) {
    Node& node = graph_.nodes.emplace_back();
    node.kind = kind;
    node.layer = layer_;
    return node;
}

ValueId GraphBuilder::embed(std::string_view tensor) {
    const TensorSlice weight = matrix(full_name(tensor, ".weight"), hp_.width, hp_.vocab);
    const ValueId out = new_value(hp_.width, false);
    Node& node = add_node(NodeKind::Embed);
    node.weight = weight;
    node.out = out;
    return out;
}

ValueId GraphBuilder::norm(ValueId x, std::string_view tensor) {
    const Value value = graph_.values[x];
    const TensorSlice gain = vector(full_name(tensor, ".weight"), value.width);
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::Norm);
    node.x = x;
    node.out = out;
    node.vector = gain;
    node.group = value.width;
    return out;
}

ValueId GraphBuilder::norm_heads(ValueId x, std::string_view tensor) {
    const Value value = graph_.values[x];
    const TensorSlice gain = vector(full_name(tensor, ".weight"), hp_.head_dim);
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::Norm);
    node.x = x;
    node.out = out;
    node.vector = gain;
    node.group = hp_.head_dim;
    return out;
}

ValueId GraphBuilder::add_matmul(ValueId x, TensorSlice weight, TensorSlice bias) {
    const ValueId out = new_value(weight.rows, graph_.values[x].gathered);
    Node& node = add_node(NodeKind::Matmul);
    node.x = x;
    node.out = out;
    node.weight = weight;
    node.vector = bias;
    return out;
}

ValueId GraphBuilder::matmul(ValueId x, std::string_view tensor, uint32_t n) {
    TensorSlice weight = matrix(full_name(tensor, ".weight"), graph_.values[x].width, n);
    weight.rows = n;  // keeps widths right behind a problem that finish() will report
    return add_matmul(x, weight, optional_vector(full_name(tensor, ".bias"), n));
}

GraphBuilder::Qkv GraphBuilder::qkv(ValueId x) {
    const uint32_t q = hp_.heads * hp_.head_dim;
    const uint32_t kv = hp_.kv_heads * hp_.head_dim;
    const std::string fused = full_name("attn_qkv", ".weight");
    if (file_.find_tensor(fused) == nullptr) {
        const ValueId query = matmul(x, "attn_q", q);
        const ValueId key = matmul(x, "attn_k", kv);
        return {query, key, matmul(x, "attn_v", kv)};
    }
    const TensorSlice weight = matrix(fused, graph_.values[x].width, q + 2 * kv);
    const TensorSlice bias = optional_vector(full_name("attn_qkv", ".bias"), q + 2 * kv);
    const auto part = [](TensorSlice whole, uint32_t begin, uint32_t rows) {
        return whole.is_present() ? TensorSlice{whole.tensor, begin, rows} : TensorSlice{};
    };
    const auto project = [&](uint32_t begin, uint32_t rows) {
        return add_matmul(x, {weight.tensor, begin, rows}, part(bias, begin, rows));
    };
    const ValueId query = project(0, q);
    const ValueId key = project(q, kv);
    return {query, key, project(q + kv, kv)};
}

void GraphBuilder::use_rope(bool neox, std::string_view factors_tensor) {
    graph_.rope_neox = neox;
    if (!factors_tensor.empty()) {
        graph_.rope_factors =
            optional_vector(full_name(factors_tensor, ".weight"), hp_.rope_dims / 2);
    }
}

void GraphBuilder::rope(ValueId x) {
    Node& node = add_node(NodeKind::Rope);
    node.x = x;
    node.out = x;
    node.heads = graph_.values[x].width / hp_.head_dim;
}

ValueId GraphBuilder::attention(const Qkv& qkv) {
    const ValueId out = new_value(graph_.values[qkv.q].width, false);
    Node& node = add_node(NodeKind::Attention);
    node.x = qkv.q;
    node.y = qkv.k;
    node.z = qkv.v;
    node.out = out;
    return out;
}

ValueId GraphBuilder::swiglu(ValueId gate, ValueId up) {
    const Value value = graph_.values[gate];
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::SwiGlu);
    node.x = gate;
    node.y = up;
    node.out = out;
    return out;
}

void GraphBuilder::add(ValueId x, ValueId y) {
    STRATA_ASSERT(graph_.values[x].width == graph_.values[y].width &&
                      graph_.values[x].gathered == graph_.values[y].gathered,
                  "operands of an addition differ in shape");
    Node& node = add_node(NodeKind::Add);
    node.x = x;
    node.y = y;
    node.out = x;
}

ValueId GraphBuilder::gather(ValueId x) {
    const ValueId out = new_value(graph_.values[x].width, true);
    Node& node = add_node(NodeKind::Gather);
    node.x = x;
    node.out = out;
    return out;
}

ValueId GraphBuilder::head(ValueId x, std::string_view embedding_tensor) {
    const bool is_tied = file_.find_tensor("output.weight") == nullptr;
    return matmul(x, is_tied ? embedding_tensor : std::string_view("output"), hp_.vocab);
}

void GraphBuilder::check_unexpected() {
    for (size_t i = 0; i < used_.size(); ++i) {
        if (!used_[i]) {
            add_problem(ErrorKind::Unsupported,
                        "model.tensor_unexpected",
                        "tensor " + file_.tensors()[i].name + " is not used by architecture " +
                            hp_.architecture +
                            " here; a model that needs it would give wrong results");
        }
    }
}

Graph GraphBuilder::finish(ValueId logits) {
    graph_.logits = logits;
    if (problems_.empty()) {
        check_unexpected();
    }
    if (!problems_.empty()) {
        std::string text;
        for (size_t i = 0; i < problems_.size() && i < kProblemsListed; ++i) {
            text += (i == 0 ? "" : "; ") + problems_[i].reason.text;
        }
        if (problems_.size() > kProblemsListed) {
            text += "; and " + std::to_string(problems_.size() - kProblemsListed) + " more";
        }
        throw Error(problems_.front().kind, problems_.front().reason.code, text);
    }
    return std::move(graph_);
}

}  // namespace strata
