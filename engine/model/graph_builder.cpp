#include "engine/model/graph_builder.h"

#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/assert.h"
#include "engine/quant/dequantize.h"

namespace strata {

namespace {

constexpr size_t kProblemsListed = 8;

std::string matrix_text(uint64_t k, uint64_t n) {
    return "[" + std::to_string(k) + ", " + std::to_string(n) + "]";
}

constexpr TensorCodes kModelCodes = {
    "model.tensor_missing", "model.tensor_shape", "model.tensor_type", "model.tensor_unexpected"};
constexpr TensorCodes kDrafterCodes = {"drafter.tensor_missing",
                                       "drafter.tensor_shape",
                                       "drafter.tensor_type",
                                       "drafter.tensor_unexpected"};

constexpr std::string_view kPleTable = "per_layer_token_embd.weight";
// Mixer of the streams behind a draft layer. Some files call it nextn.hc_*; a file with nothing but
// a draft layer may call it output_hc_*, as a model calls its own.
constexpr std::string_view kDraftMixer = "nextn.hc_head_";
constexpr std::string_view kLayerPrefix = "blk.";  // before the number of a layer

}  // namespace

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
    const gguf::File& file = files_.file(file_of(full_name));
    const gguf::TensorInfo* tensor = file.find_tensor(full_name);
    const size_t at = full_name.find(kDraftMixer);
    if (tensor != nullptr || at == std::string_view::npos) return tensor;
    const std::string part(full_name.substr(at + kDraftMixer.size()));  // "norm.weight"
    tensor = file.find_tensor(std::string(full_name.substr(0, at)) + "nextn.hc_" + part);
    const bool has_own_file = is_drafter() && layer_file_ == kDrafterFile;
    return tensor != nullptr || !has_own_file ? tensor : file.find_tensor("output_hc_" + part);
}

std::string GraphBuilder::own_or(std::string_view tensor, std::string_view fallback) const {
    std::string own = full_name(tensor, ".weight");
    return find(own) != nullptr ? own : std::string(fallback) + ".weight";
}

void GraphBuilder::add_problem(ErrorKind kind, const char* code, std::string text) {
    for (const Problem& known : problems_) {
        if (known.reason.text == text) return;  // of a tensor whose parts are used one by one
    }
    problems_.push_back({kind, {code, std::move(text)}});
}

TensorSlice GraphBuilder::take(const std::string& name, std::string_view needed) {
    const uint32_t file = file_of(name);
    const gguf::TensorInfo* tensor = find(name);
    if (tensor == nullptr) {
        add_problem(ErrorKind::InvalidRequest,
                    codes_.missing,
                    "tensor " + name + " is missing; needed is " + std::string(needed) +
                        (name == kPleTable ? "; name the file that holds it with --ple" : ""));
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
    if (!can_dequantize(tensor.type)) {
        add_problem(ErrorKind::Unsupported,
                    codes_.type,
                    "tensor " + name + " has type " +
                        std::string(ggml_type_name(tensor.ggml_type)) +
                        "; a vector's type is a float of at most 32 bits or a block format");
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

ValueId GraphBuilder::add_matmul(ValueId x,
                                 TensorSlice weight,
                                 const std::string& tensor,
                                 MatrixRows rows) {
    TensorSlice bias = optional_vector(tensor + ".bias", rows.of);
    if (bias.is_present()) {
        bias.row_begin = rows.begin;
        bias.rows = rows.count;
    }
    const TensorSlice scale = optional_vector(tensor + ".scale", 1);
    if (scale.is_present() && bias.is_present()) {
        add_problem(ErrorKind::Unsupported,
                    codes_.unexpected,
                    "tensor " + tensor + ".scale stands beside a bias, which is not supported");
    }
    // The widths stay right behind a problem that finish() will report.
    weight.row_begin = rows.begin;
    weight.rows = rows.count;
    const ValueId out = new_value(rows.count, graph_.values[x].gathered);
    Node& node = add_node(NodeKind::Matmul);
    node.x = x;
    node.out = out;
    node.weight = weight;
    node.vector = bias;
    if (scale.is_present()) {
        Node& scaling = add_node(NodeKind::Scale);
        scaling.x = out;
        scaling.out = out;
        scaling.vector = scale;
    }
    return out;
}

ValueId GraphBuilder::matmul(ValueId x, std::string_view tensor, uint32_t n) {
    return matmul_part(x, tensor, {0, n, n});
}

ValueId GraphBuilder::matmul_part(ValueId x, std::string_view tensor, MatrixRows rows) {
    const TensorSlice weight =
        matrix(full_name(tensor, ".weight"), graph_.values[x].width, rows.of);
    return add_matmul(x, weight, full_name(tensor, ""), rows);
}

GraphBuilder::Qkv GraphBuilder::qkv(ValueId x) {
    return qkv(x, hp_.heads * hp_.head_dim);
}

GraphBuilder::Qkv GraphBuilder::qkv(ValueId x, uint32_t q_width) {
    const uint32_t kv = hp_.kv_heads * hp_.head_dim;
    if (!has("attn_qkv")) {
        const ValueId query = matmul(x, "attn_q", q_width);
        const ValueId key = matmul(x, "attn_k", kv);
        return {query, key, matmul(x, "attn_v", kv)};
    }
    const uint32_t all = q_width + 2 * kv;
    const ValueId query = matmul_part(x, "attn_qkv", {0, q_width, all});
    const ValueId key = matmul_part(x, "attn_qkv", {q_width, kv, all});
    return {query, key, matmul_part(x, "attn_qkv", {q_width + kv, kv, all})};
}

ValueId GraphBuilder::feed_forward(ValueId x) {
    const uint32_t ff = hp_.ff_of(layer());
    const ValueId gate = matmul(x, "ffn_gate", ff);
    const ValueId up = matmul(x, "ffn_up", ff);
    return matmul(swiglu(gate, up), "ffn_down", hp_.width);
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

ValueId GraphBuilder::add_head(ValueId x, const std::string& tensor) {
    if (graph_.hidden == kNoValue) graph_.hidden = x;
    const ValueId rows = graph_.values[x].gathered ? x : add_gather(x);
    const TensorSlice weight = matrix(tensor + ".weight", graph_.values[rows].width, hp_.vocab);
    return add_matmul(rows, weight, tensor, {0, hp_.vocab, hp_.vocab});
}

ValueId GraphBuilder::head(ValueId x, std::string_view embedding_tensor) {
    const bool is_tied = find("output.weight") == nullptr;
    return add_head(x, std::string(is_tied ? embedding_tensor : std::string_view("output")));
}

// Tensors that this graph has no need to know: for a model those of its draft layers, for a drafter
// all others.
bool GraphBuilder::is_foreign(const gguf::TensorInfo& tensor) const {
    const std::optional<uint32_t> layer = layer_of(tensor.name);
    const bool is_of_draft =
        layer && *layer >= hp_.layers && *layer - hp_.layers < hp_.draft_layers;
    return is_of_draft != is_drafter();
}

// Scales by which a kernel of another kind would round activations to 4 bits. The weights are whole
// without them (values times block scales times ".scale"), so a graph that multiplies unrounded
// activations computes the same product with and without.
bool GraphBuilder::is_input_scale(const gguf::TensorInfo& tensor) const {
    constexpr std::string_view kSuffix = ".input_scale";
    if (!tensor.name.ends_with(kSuffix) || !can_dequantize(tensor.type)) return false;
    const std::string matrix =
        tensor.name.substr(0, tensor.name.size() - kSuffix.size()) + ".weight";
    const gguf::File& file = files_.file(layer_file_);
    const gguf::TensorInfo* weight = file.find_tensor(matrix);
    return weight != nullptr && used_[static_cast<size_t>(weight - file.tensors().data())] &&
           (tensor.elements() == 1 || tensor.elements() == weight->shape[2]);
}

void GraphBuilder::check_unexpected() {
    const std::vector<gguf::TensorInfo>& tensors = files_.file(layer_file_).tensors();
    for (size_t i = 0; i < used_.size(); ++i) {
        if (!used_[i] && !is_foreign(tensors[i]) && !is_input_scale(tensors[i])) {
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
