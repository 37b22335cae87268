// What the scheduler wants to be told to the supervisor: plain data, no encoding, no I/O. The loop
// turns one Effects into one TOKENS frame, then PROMPT_LOGPROBS frames, then DONE frames.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace strata {

struct TokenLogprob;  // engine/decode

enum class FinishReason : uint8_t { Stop, Length, Cancelled, Error };

struct TokenEffect {
    uint64_t rid = 0;
    uint32_t offset = 0;  // index among the request's generated tokens, absolute
    int32_t token = 0;
    const TokenLogprob* logprob = nullptr;  // null where not asked for; valid until the next step
};

struct PromptLogprobEffect {
    uint64_t rid = 0;
    uint32_t offset = 0;  // prompt index of the token that was scored
    const TokenLogprob* logprob = nullptr;
};

// The one terminal effect of a request.
struct DoneEffect {
    uint64_t rid = 0;
    FinishReason reason = FinishReason::Error;
    uint32_t prompt_tokens = 0;
    uint32_t cached_tokens = 0;
    uint32_t output_tokens = 0;  // delivered in TOKENS, resumed ones included; a stop id is not
    double queue_ms = 0;
    double prefill_ms = 0;
    double decode_ms = 0;
    int32_t stop_id = -1;
    std::optional<ErrorKind> error_kind;
    std::string code;
    std::string text;
};

// Reused between steps: clear() keeps the memory.
struct Effects {
    std::vector<TokenEffect> tokens;                   // at most one per sequence and step
    std::vector<PromptLogprobEffect> prompt_logprobs;  // ascending offsets within a request
    std::vector<DoneEffect> done;

    bool is_empty() const { return tokens.empty() && prompt_logprobs.empty() && done.empty(); }
    void clear() {
        tokens.clear();
        prompt_logprobs.clear();
        done.clear();
    }
};

}  // namespace strata
