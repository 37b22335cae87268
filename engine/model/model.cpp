#include "engine/model/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/model/architecture.h"

namespace strata {

Model::Model(gguf::File file, Hparams hparams)
    : file_(std::move(file)), hparams_(std::move(hparams)) {}

Model Model::open(const std::string& path) {
    gguf::File file = gguf::File::open(path);
    const std::optional<std::string_view> name = file.find_string("general.architecture");
    if (!name) {
        throw Error(ErrorKind::InvalidRequest,
                    "model.metadata",
                    "metadata key general.architecture is missing");
    }
    const Architecture& architecture = find_architecture(*name);
    Hparams hparams = architecture.read_hparams(file, architecture.name);
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
