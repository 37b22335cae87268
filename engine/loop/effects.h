// What the scheduler wants to be told to the supervisor: plain data, no encoding, no I/O. The loop
// turns one Effects into PROMPT_LOGPROBS frames, then one TOKENS frame, then DONE frames.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/cpp/messages.h"

namespace strata {

struct TokenLogprob;  // engine/decode

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

// Reused between steps: clear() keeps the memory.
struct Effects {
    std::vector<TokenEffect> tokens;                   // of a sequence: ascending and in a row
    std::vector<PromptLogprobEffect> prompt_logprobs;  // ascending offsets within a request
    std::vector<protocol::Done> done;                  // the one terminal message of a request each

    bool is_empty() const { return tokens.empty() && prompt_logprobs.empty() && done.empty(); }
    void clear() {
        tokens.clear();
        prompt_logprobs.clear();
        done.clear();
    }
};

}  // namespace strata
