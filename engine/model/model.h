// A model file opened and understood: its sizes, its graph, its tensors. Reads headers only; no
// weight is touched before a backend asks for its bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/gguf/file.h"
#include "engine/model/graph.h"
#include "engine/model/hparams.h"

namespace strata {

// What is told about a model (ModelFacts of the protocol).
struct ModelFacts {
    std::string architecture;
    std::string name;
    uint64_t file_bytes = 0;
    uint64_t parameters = 0;
    uint32_t layers = 0;
    uint32_t vocab = 0;
    uint32_t context = 0;
    std::vector<std::string> types;  // tensor types in the file, most bytes first
    std::string sha256_head;         // of metadata and tensor index, hex
};

class Model {
  public:
    // Throws Error "gguf.*" (file), "model.architecture", "model.metadata", "model.tensor_*".
    static Model open(const std::string& path);

    const gguf::File& file() const { return file_; }
    const Hparams& hparams() const { return hparams_; }
    const Graph& graph() const { return graph_; }
    ModelFacts facts() const;

    const gguf::TensorInfo& tensor(const TensorSlice& slice) const {
        return file_.tensors()[slice.tensor];
    }
    // Bytes of the slice's rows in the mapped file.
    std::span<const std::byte> bytes(const TensorSlice& slice) const;
    // Rope frequencies before the factors: base^(-2i / rope_dims) * scale, [rope_dims / 2].
    std::vector<double> rope_frequencies() const;

  private:
    Model(gguf::File file, Hparams hparams, Graph graph);

    gguf::File file_;
    Hparams hparams_;
    Graph graph_;
};

}  // namespace strata
