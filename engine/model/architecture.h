// The table of architectures the engine can run. An architecture is one file that says how to read
// its sizes and lists its layers and its drafter's (docs/adding-a-model.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/graph_builder.h"
#include "engine/model/hparams.h"

namespace strata {

struct Architecture {
    std::string_view name;  // value of general.architecture
    Hparams (*read_hparams)(const gguf::File& file, std::string_view architecture) = nullptr;
    Graph (*build)(GraphBuilder& builder, const Hparams& hparams) = nullptr;
    // Of the draft layer (drafter.h), which is layer hparams.layers; null where it is not built.
    Graph (*build_draft)(GraphBuilder& builder, const Hparams& hparams) = nullptr;
};

const std::vector<Architecture>& architectures();

// Throws Error{Unsupported, "model.architecture"} that lists what is supported.
const Architecture& find_architecture(std::string_view name);

}  // namespace strata
