// The configuration axes users name (batch, max_context, kv, ...), what was asked for each, and
// what can run. Mirrors WantedModes, ModePlan and ModeReport of
// protocol/strata_protocol/messages.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/quant/dtype.h"

namespace strata {

// Tokens of one KV page on every backend. Prefix reuse works in whole pages.
inline constexpr uint32_t kPageTokens = 32;

// 0 and "auto" leave the choice to the planner.
struct WantedModes {
    uint32_t batch = 8;
    uint32_t max_context = 0;
    std::string kv = "auto";  // auto | f16 | f32
    uint32_t prefill = 256;
    std::string activations = "auto";  // auto | int8 | f32
    uint32_t threads = 0;
    uint64_t kv_tokens = 0;
    bool prefix_cache = true;
};

// One configuration with every value chosen.
struct ModePlan {
    uint32_t batch = 1;        // sequences that may share a step
    uint32_t max_context = 0;  // tokens a sequence may reach
    DType kv = DType::F16;
    uint32_t prefill = 1;                // prompt rows a step may carry beside the decode rows
    DType activations = DType::I8Block;  // I8Block or F32
    uint32_t threads = 1;
    uint64_t kv_tokens = 0;  // size of the KV pool, a multiple of kPageTokens
    bool prefix_cache = true;

    uint32_t rows_max() const { return batch + prefill; }
    uint32_t pages() const { return static_cast<uint32_t>(kv_tokens / kPageTokens); }
    uint32_t pages_per_sequence() const { return (max_context + kPageTokens - 1) / kPageTokens; }
};

enum class ModeState : uint8_t { Ready, Limited, Unsupported };

struct ModeReport {
    std::string name;
    ModeState state = ModeState::Ready;
    std::string requested;
    std::string available;
    std::vector<Reason> reasons;
};

struct MemoryPart {
    std::string name;  // "weights.mapped", "weights.packed", "kv", "activations", "logits"
    uint64_t bytes = 0;
    std::string text;
};

}  // namespace strata
