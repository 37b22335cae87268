#include "engine/model/model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/model/architecture.h"

namespace strata {

Model::Model(gguf::File file, Hparams hparams, Graph graph)
    : file_(std::move(file)), hparams_(std::move(hparams)), graph_(std::move(graph)) {}

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
    GraphBuilder builder(file, hparams);
    Graph graph = architecture.build(builder, hparams);
    return Model(std::move(file), std::move(hparams), std::move(graph));
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

std::span<const std::byte> Model::bytes(const TensorSlice& slice) const {
    const gguf::TensorInfo& info = tensor(slice);
    const std::span<const std::byte> all = file_.tensor_bytes(info);
    if (info.dimensions == 1) {
        return all.subspan(dtype_bytes(info.type, slice.row_begin),
                           dtype_bytes(info.type, slice.rows));
    }
    const uint64_t row_bytes = dtype_bytes(info.type, info.shape[0]);
    STRATA_ASSERT(row_bytes * (slice.row_begin + slice.rows) <= all.size(), "slice in its tensor");
    return all.subspan(row_bytes * slice.row_begin, row_bytes * slice.rows);
}

std::vector<double> Model::rope_frequencies() const {
    std::vector<double> frequencies(hparams_.rope_dims / 2);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] =
            std::pow(hparams_.rope_base,
                     -2.0 * static_cast<double>(i) / static_cast<double>(hparams_.rope_dims)) *
            hparams_.rope_scale;
    }
    return frequencies;
}

}  // namespace strata
