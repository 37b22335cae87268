#include "engine/model/model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/model/architecture.h"

namespace strata {

Model::Model(gguf::File file, Hparams hparams)
    : file_(std::move(file)), hparams_(std::move(hparams)) {}

namespace {

constexpr std::string_view kPleTable = "per_layer_token_embd.weight";

// The smallest number of a layer that the file has tensors of, nothing where it has no layers.
std::optional<uint32_t> first_layer(const gguf::File& file) {
    std::optional<uint32_t> first;
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        const std::optional<uint32_t> layer = layer_of(tensor.name);
        if (layer && (!first || *layer < *first)) first = layer;
    }
    return first;
}

[[noreturn]] void refuse_part(const gguf::File& file, const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, "model.part", printable(file.path(), 400) + ": " + text);
}

void check_ple(const gguf::File& file, const std::string& path) {
    const gguf::TensorInfo* table = file.find_tensor(kPleTable);
    if (table == nullptr || table->part + 1 != file.parts())
        throw Error(
            ErrorKind::InvalidRequest,
            "model.part",
            printable(path, 400) + ": the file of --ple has no tensor " + std::string(kPleTable));
}

}  // namespace

Model Model::open(const std::string& path, const std::string& ple) {
    gguf::File file = gguf::File::open_with(path, ple);
    if (!ple.empty()) check_ple(file, ple);
    const std::optional<uint32_t> first = first_layer(file);
    if (!first && file.find_tensor(kPleTable) != nullptr) {
        refuse_part(file,
                    "this file holds a per-layer embedding table only; name it with --ple beside "
                    "its model");
    }
    const std::optional<std::string_view> name = file.find_string("general.architecture");
    if (!name) {
        throw Error(ErrorKind::InvalidRequest,
                    "model.metadata",
                    "metadata key general.architecture is missing");
    }
    const Architecture& architecture = find_architecture(*name);
    Hparams hparams = architecture.read_hparams(file, architecture.name);
    if (first && *first >= hparams.layers) {
        refuse_part(file,
                    "this file holds a draft layer only (layer " + std::to_string(*first) +
                        "); use it with --mtp beside its model");
    }
    check_layers(file, hparams);
    if (hparams.vocab == 0) {
        throw Error(ErrorKind::InvalidRequest,
                    "model.metadata",
                    "metadata key " + hparams.architecture +
                        ".vocab_size is missing, and so is tokenizer.ggml.tokens");
    }
    Model model(std::move(file), std::move(hparams));
    GraphBuilder plain(model.files(), model.hparams_, GraphScope::Model);
    model.graph_ = architecture.build(plain, model.hparams_);
    GraphBuilder drafted(model.files(), model.hparams_, GraphScope::DraftedModel);
    model.drafted_graph_ = architecture.build(drafted, model.hparams_);
    return model;
}

ModelFacts Model::facts() const {
    ModelFacts facts;
    facts.architecture = hparams_.architecture;
    facts.name = std::string(file_.find_string("general.name").value_or(""));
    facts.file_bytes = file_.file_bytes();
    facts.layers = hparams_.layers;
    facts.vocab = hparams_.vocab;
    facts.context = hparams_.context;
    facts.sha256_head = file_.header_sha256();
    std::map<uint32_t, uint64_t> bytes_by_type;
    for (const gguf::TensorInfo& tensor : file_.tensors()) {
        facts.parameters += tensor.elements();
        bytes_by_type[tensor.ggml_type] += tensor.bytes;
    }
    std::vector<std::pair<uint64_t, uint32_t>> order;
    for (const auto& [type, bytes] : bytes_by_type) {
        order.emplace_back(bytes, type);
    }
    std::sort(order.rbegin(), order.rend());
    for (const auto& [bytes, type] : order) {
        facts.types.emplace_back(ggml_type_name(type));
    }
    return facts;
}

}  // namespace strata
