// The configuration axes users name (batch, max_context, kv, ...), what was asked for each, and
// what can run. Mirrors WantedModes, ModePlan and MemoryPart of
// protocol/strata_protocol/messages.py.
#pragma once

#include <cstdint>
#include <string>

#include "engine/quant/dtype.h"

namespace strata {

// Tokens of one KV page on every backend. Prefix reuse works in whole pages.
inline constexpr uint32_t kPageTokens = 32;

// 0 and "auto" leave the choice to the planner.
struct WantedModes {
    uint32_t batch = 8;
    uint32_t max_context = 0;
    std::string kv = "auto";  // auto | f32 | f16 | bf16 | int8 | q4_0
    uint32_t prefill = 256;
    std::string activations = "auto";  // auto | int8 | f32
    uint32_t threads = 0;
    uint64_t kv_tokens = 0;
    bool prefix_cache = true;
    std::string mtp = "auto";  // auto: the model file's own draft layers | off | a drafter's file
    uint32_t spec = 0;         // drafts a sequence may verify per step; 0 = auto
    double spec_min_p = 0;     // a draft less probable than this ends drafting
    std::string batch_mtp = "auto";  // auto | on | off: drafts while sequences share a step
    std::string device = "auto";
    uint64_t device_memory = 0;  // bytes that may be used; 0 = what is free
    bool mmap = true;            // weights that kernels read as they are stay in the mapped file
    bool mlock = false;          // keep the weights from being paged out
    std::string expert_cache = "auto";     // auto | off | number of experts kept in device memory
    uint64_t kv_resident = 0;              // tokens of KV kept in device memory; 0 = all
    std::string mtp_hidden_norm = "auto";  // of drafters of residual streams: auto | stream | whole
};

// One configuration with every value chosen.
struct ModePlan {
    uint32_t batch = 1;                  // sequences that may share a step
    uint32_t max_context = 0;            // tokens a sequence may reach
    DType kv = DType::F16;               // F32, F16, BF16, Q8_0 ("int8") or Q4_0
    uint32_t prefill = 1;                // prompt rows a step may carry beside the decode rows
    DType activations = DType::I8Block;  // I8Block or F32
    uint32_t threads = 1;
    uint64_t kv_tokens = 0;  // size of the KV pool, a multiple of kPageTokens
    bool prefix_cache = true;
    std::string mtp = "off";  // off | model: the file's own draft layers | a drafter's file
    uint32_t spec = 0;        // 0 = no drafts
    double spec_min_p = 0;
    bool batch_mtp = false;  // drafts also while sequences share a step
    bool mmap = true;
    bool mlock = false;
    std::string expert_cache = "off";
    uint64_t kv_resident = 0;
    std::string mtp_hidden_norm = "auto";  // auto: what the drafter's file says, else stream

    // Each sequence that drafts brings its drafts to the step that verifies them.
    uint32_t verify_rows() const { return batch_mtp ? batch * (spec + 1) : batch + spec; }
    uint32_t rows_max() const { return verify_rows() + prefill; }
    uint32_t pages() const { return static_cast<uint32_t>(kv_tokens / kPageTokens); }
    uint32_t pages_per_sequence() const { return (max_context + kPageTokens - 1) / kPageTokens; }

    bool operator==(const ModePlan&) const = default;
};

struct MemoryPart {
    std::string name;  // "weights.mapped", "weights.packed", "kv", "activations", "logits"
    uint64_t bytes = 0;
    std::string text;
    uint64_t on_demand_bytes = 0;  // in the file, of which none has to be in memory
};

}  // namespace strata
