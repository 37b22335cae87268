#include "engine/model/graph_builder.h"

#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/assert.h"

namespace strata {

namespace {

constexpr size_t kProblemsListed = 8;

std::string matrix_text(uint64_t k, uint64_t n) {
    return "[" + std::to_string(k) + ", " + std::to_string(n) + "]";
}

bool is_float_type(DType type) {
    return type == DType::F32 || type == DType::F16 || type == DType::BF16;
}

constexpr TensorCodes kModelCodes = {
    "model.tensor_missing", "model.tensor_shape", "model.tensor_type", "model.tensor_unexpected"};
constexpr TensorCodes kDrafterCodes = {"drafter.tensor_missing",
                                       "drafter.tensor_shape",
                                       "drafter.tensor_type",
                                       "drafter.tensor_unexpected"};

constexpr std::string_view kLayerPrefix = "blk.";  // before the number of a layer

// N of "blk.N.NAME"; nothing for names outside the layers.
std::optional<uint32_t> layer_of(std::string_view name) {
    if (!name.starts_with(kLayerPrefix)) {
        return std::nullopt;
    }
    name.remove_prefix(kLayerPrefix.size());
    uint32_t layer = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    const bool is_layer = error == std::errc() && end != name.data() + name.size() && *end == '.';
    return is_layer ? std::optional(layer) : std::nullopt;
}

}  // namespace

std::string shape_text(uint32_t dimensions, const std::array<uint64_t, 4>& shape) {
    std::string text = "[";
    for (uint32_t i = 0; i < dimensions; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return text + "]";
}

GraphBuilder::GraphBuilder(const TensorFiles& files, const Hparams& hparams, GraphScope scope)
    : files_(files),
      hp_(hparams),
      scope_(scope),
      codes_(is_drafter() ? kDrafterCodes : kModelCodes),
      layer_file_(is_drafter() && files.has_file(kDrafterFile) ? kDrafterFile : kBaseFile),
      used_(files.file(layer_file_).tensors().size(), false) {}

void GraphBuilder::begin_layer(uint32_t index) {
    layer_ = static_cast<int32_t>(index);
}

void GraphBuilder::end_layers() {
    layer_ = -1;
}

std::string GraphBuilder::full_name(std::string_view tensor, std::string_view suffix) const {
    std::string name;
    if (layer_ >= 0) {
        name.append(kLayerPrefix).append(std::to_string(layer_)).append(".");
    }
    return name.append(tensor).append(suffix);
}

uint32_t GraphBuilder::file_of(std::string_view full_name) const {
    return full_name.starts_with(kLayerPrefix) ? layer_file_ : kBaseFile;
}

const gguf::TensorInfo* GraphBuilder::find(std::string_view full_name) const {
    return files_.file(file_of(full_name)).find_tensor(full_name);
}

std::string GraphBuilder::own_or(std::string_view tensor, std::string_view fallback) const {
    std::string own = full_name(tensor, ".weight");
    return find(own) != nullptr ? own : std::string(fallback) + ".weight";
}

void GraphBuilder::add_problem(ErrorKind kind, const char* code, std::string text) {
    problems_.push_back({kind, {code, std::move(text)}});
}

TensorSlice GraphBuilder::take(const std::string& name, std::string_view needed) {
    const uint32_t file = file_of(name);
    const gguf::TensorInfo* tensor = find(name);
    if (tensor == nullptr) {
        add_problem(ErrorKind::InvalidRequest,
                    codes_.missing,
                    "tensor " + name + " is missing; needed is " + std::string(needed));
        return {};
    }
    const auto index = static_cast<uint32_t>(tensor - files_.file(file).tensors().data());
    if (file == layer_file_) {
        used_[index] = true;
    }
    return {index, 0, 0, file};
}

TensorSlice GraphBuilder::matrix(const std::string& name, uint64_t k, uint64_t n) {
    TensorSlice slice = take(name, matrix_text(k, n));
    if (!slice.is_present()) {
        return {};
    }
    check_matrix(files_.tensor(slice), {k, n, 1, 1}, matrix_text(k, n));
    slice.rows = static_cast<uint32_t>(n);
    return slice;
}

void GraphBuilder::check_matrix(const gguf::TensorInfo& tensor,
                                const std::array<uint64_t, 4>& shape,
                                const std::string& needed) {
    if (tensor.shape != shape) {
        add_problem(ErrorKind::InvalidRequest,
                    codes_.shape,
                    "tensor " + tensor.name + " has shape " +
                        shape_text(tensor.dimensions, tensor.shape) + "; needed is " + needed);
    }
    if (tensor.type == DType::None) {  // even its size is unknown
        add_problem(ErrorKind::Unsupported,
                    codes_.type,
                    "tensor " + tensor.name + " has " +
                        std::string(ggml_type_name(tensor.ggml_type)) + ", which is no known type");
    }
}

TensorSlice GraphBuilder::vector(const std::string& name, uint64_t elements, bool in_any_shape) {
    const std::string needed = "[" + std::to_string(elements) + "]";
    TensorSlice slice = take(name, needed);
    if (!slice.is_present()) {
        return {};
    }
    const gguf::TensorInfo& tensor = files_.tensor(slice);
    if (tensor.elements() != elements || (!in_any_shape && tensor.shape[0] != elements)) {
        add_problem(ErrorKind::InvalidRequest,
                    codes_.shape,
                    "tensor " + name + " has shape " + shape_text(tensor.dimensions, tensor.shape) +
                        "; needed is " + needed);
    }
    if (!is_float_type(tensor.type)) {
        add_problem(ErrorKind::Unsupported,
                    codes_.type,
                    "tensor " + name + " has type " +
                        std::string(ggml_type_name(tensor.ggml_type)) +
                        "; a vector's type is f32, f16 or bf16");
    }
    slice.rows = static_cast<uint32_t>(elements);
    return slice;
}

TensorSlice GraphBuilder::optional_vector(const std::string& name, uint64_t elements) {
    return find(name) == nullptr ? TensorSlice{} : vector(name, elements);
}

ValueId GraphBuilder::new_value(const Value& value) {
    graph_.values.push_back(value);
    return static_cast<ValueId>(graph_.values.size() - 1);
}

ValueId GraphBuilder::new_value(uint32_t width, bool gathered) {
    Value value;
    value.width = width;
    value.gathered = gathered;
    return new_value(value);
}

Node& GraphBuilder::add_node(NodeKind kind) {
    Node& node = graph_.nodes.emplace_back();
    node.kind = kind;
    node.layer = layer_;
    return node;
}

ValueId GraphBuilder::add_embed(const std::string& table) {
    const TensorSlice weight = matrix(table, hp_.width, hp_.vocab);
    const ValueId out = new_value(hp_.width, false);
    Node& node = add_node(NodeKind::Embed);
    node.weight = weight;
    node.out = out;
    return out;
}

ValueId GraphBuilder::embed(std::string_view tensor) {
    return add_embed(full_name(tensor, ".weight"));
}

ValueId GraphBuilder::add_norm(ValueId x, const std::string& gain, uint32_t group) {
    const Value value = graph_.values[x];
    const TensorSlice vector_slice = vector(gain, group);
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::Norm);
    node.x = x;
    node.out = out;
    node.vector = vector_slice;
    node.group = group;
    return out;
}

ValueId GraphBuilder::norm(ValueId x, std::string_view tensor) {
    return add_norm(x, full_name(tensor, ".weight"), graph_.values[x].width);
}

ValueId GraphBuilder::norm_heads(ValueId x, std::string_view tensor) {
    return add_norm(x, full_name(tensor, ".weight"), hp_.head_dim);
}

ValueId GraphBuilder::norm_groups(ValueId x, std::string_view tensor, uint32_t group) {
    return add_norm(x, full_name(tensor, ".weight"), group);
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
    if (find(fused) == nullptr) {
        const ValueId query = matmul(x, "attn_q", q);
        const ValueId key = matmul(x, "attn_k", kv);
        return {query, key, matmul(x, "attn_v", kv)};
    }
    const TensorSlice weight = matrix(fused, graph_.values[x].width, q + 2 * kv);
    const TensorSlice bias = optional_vector(full_name("attn_qkv", ".bias"), q + 2 * kv);
    const auto part = [](TensorSlice whole, uint32_t begin, uint32_t rows) {
        return whole.is_present() ? TensorSlice{whole.tensor, begin, rows, whole.file}
                                  : TensorSlice{};
    };
    const auto project = [&](uint32_t begin, uint32_t rows) {
        return add_matmul(x, {weight.tensor, begin, rows, weight.file}, part(bias, begin, rows));
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
    rope_groups(x, hp_.head_dim);
}

void GraphBuilder::rope_groups(ValueId x, uint32_t group) {
    Node& node = add_node(NodeKind::Rope);
    node.x = x;
    node.out = x;
    node.heads = graph_.values[x].width / group;
    node.group = group;
}

ValueId GraphBuilder::attention(const Qkv& qkv, ValueId masks) {
    const ValueId out = new_value(graph_.values[qkv.q].width, false);
    Node& node = add_node(NodeKind::Attention);
    node.x = qkv.q;
    node.y = qkv.k;
    node.z = qkv.v;
    node.out = out;
    node.routing = masks;
    return out;
}

ValueId GraphBuilder::swiglu(ValueId gate, ValueId up) {
    const ValueId out = new_value(Value(graph_.values[gate]));
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

ValueId GraphBuilder::concat(ValueId x, ValueId y) {
    const Value first = graph_.values[x];
    const Value second = graph_.values[y];
    STRATA_ASSERT(first.gathered == second.gathered, "parts of a row belong to the same rows");
    const ValueId out = new_value(first.width + second.width, first.gathered);
    Node& node = add_node(NodeKind::Concat);
    node.x = x;
    node.y = y;
    node.out = out;
    return out;
}

ValueId GraphBuilder::add_gather(ValueId x) {
    const ValueId out = new_value(graph_.values[x].width, true);
    Node& node = add_node(NodeKind::Gather);
    node.x = x;
    node.out = out;
    return out;
}

ValueId GraphBuilder::gather(ValueId x) {
    return scope_ == GraphScope::DraftedModel ? x : add_gather(x);
}

ValueId GraphBuilder::keep_hidden(ValueId x) {
    graph_.hidden = x;
    return graph_.values[x].gathered ? x : add_gather(x);
}

ValueId GraphBuilder::add_head(ValueId x, const std::string& weight, const std::string& bias) {
    if (graph_.hidden == kNoValue) graph_.hidden = x;
    const ValueId rows = graph_.values[x].gathered ? x : add_gather(x);
    TensorSlice slice = matrix(weight, graph_.values[rows].width, hp_.vocab);
    slice.rows = hp_.vocab;
    return add_matmul(rows, slice, optional_vector(bias, hp_.vocab));
}

ValueId GraphBuilder::head(ValueId x, std::string_view embedding_tensor) {
    const bool is_tied = find("output.weight") == nullptr;
    const std::string name(is_tied ? embedding_tensor : std::string_view("output"));
    return add_head(x, name + ".weight", name + ".bias");
}

ValueId GraphBuilder::draft_input(std::string_view embedding_tensor) {
    const ValueId token = add_embed(own_or("nextn.embed_tokens", embedding_tensor));
    const ValueId hidden = new_value(hp_.width, false);
    add_node(NodeKind::Input).out = hidden;
    const ValueId first = norm(token, "nextn.enorm");
    const ValueId second = norm(hidden, "nextn.hnorm");
    return matmul(concat(first, second), "nextn.eh_proj", hp_.width);
}

ValueId GraphBuilder::draft_head(ValueId x,
                                 std::string_view norm_tensor,
                                 std::string_view embedding_tensor) {
    const ValueId hidden =
        add_norm(x, own_or("nextn.shared_head_norm", norm_tensor), graph_.values[x].width);
    return draft_logits(hidden, embedding_tensor);
}

ValueId GraphBuilder::draft_logits(ValueId x, std::string_view embedding_tensor) {
    const std::string own = full_name("nextn.shared_head_head", ".weight");
    return find(own) == nullptr ? head(x, embedding_tensor)
                                : add_head(x, own, full_name("nextn.shared_head_head", ".bias"));
}

// Tensors that this graph has no need to know: for a model those of its draft layers, for a drafter
// all others.
bool GraphBuilder::is_foreign(const gguf::TensorInfo& tensor) const {
    const std::optional<uint32_t> layer = layer_of(tensor.name);
    const bool is_of_draft =
        layer && *layer >= hp_.layers && *layer - hp_.layers < hp_.draft_layers;
    return is_of_draft != is_drafter();
}

void GraphBuilder::check_unexpected() {
    const std::vector<gguf::TensorInfo>& tensors = files_.file(layer_file_).tensors();
    for (size_t i = 0; i < used_.size(); ++i) {
        if (!used_[i] && !is_foreign(tensors[i])) {
            add_problem(ErrorKind::Unsupported,
                        codes_.unexpected,
                        "tensor " + tensors[i].name + " is not used by architecture " +
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
