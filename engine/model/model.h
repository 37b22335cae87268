// A model file opened and understood: its sizes, its graph, its tensors. Reads headers only; no
// weight is touched before a backend asks for its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/gguf/file.h"
#include "engine/model/graph.h"
#include "engine/model/hparams.h"
#include "engine/model/tensor_files.h"

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
    // `path`: the model's file, or the first part of a split one. `ple`: the file of its per-layer
    // embedding table, where that is one of its own; else empty. Throws Error "gguf.*" (file),
    // "model.part" (a file that goes with a model and is none), "model.architecture",
    // "model.metadata", "model.tensor_*".
    static Model open(const std::string& path, const std::string& ple = {});

    const gguf::File& file() const { return file_; }
    const Hparams& hparams() const { return hparams_; }
    const Graph& graph() const { return graph_; }
    // The same with the hidden state of every row of a step, which a drafter reads.
    const Graph& drafted_graph() const { return drafted_graph_; }
    // Draft layers that the file holds for multi-token prediction (drafter.h); 0 in most files.
    uint32_t draft_layers() const { return hparams_.draft_layers; }
    // Slices of the graphs lie in these; valid while the model stays where it is.
    TensorFiles files(const gguf::File* drafter = nullptr) const {
        return TensorFiles(file_, drafter);
    }
    ModelFacts facts() const;

  private:
    Model(gguf::File file, Hparams hparams);

    gguf::File file_;
    Hparams hparams_;
    Graph graph_;
    Graph drafted_graph_;
};

}  // namespace strata
