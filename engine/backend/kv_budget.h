// How many tokens of keys and values the pool holds: from what was asked, the memory that is left
// and one rule of moderation. Arithmetic only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/mode.h"

namespace strata {

struct KvBudgetInputs {
    uint32_t batch = 1;
    uint32_t max_context = 1;        // wanted, within the model's
    uint64_t kv_tokens = 0;          // wanted; 0 = choose
    uint64_t token_bytes = 1;        // keys and values of one token in all layers
    std::vector<MemoryPart> others;  // everything else that the plan allocates
    uint64_t available_bytes = 0;    // 0 = unknown: nothing is limited
    std::string available_text;      // what limits it: "available memory"
    std::string kv;                  // the type, for texts
};

struct KvBudget {
    uint32_t max_context = 0;
    uint64_t kv_tokens = 0;               // a multiple of kPageTokens, the least where refused
    std::vector<Reason> context_reasons;  // "mem.kv_budget", when max_context is below the wanted
    std::vector<Reason> tokens_reasons;   // when kv_tokens is not the wanted, in whole pages
    std::vector<Reason> refused;          // "mem.insufficient", when not even a minimum fits
};

// The pool may use what `available_bytes` leaves after `others` and a margin of a twentieth.
// Without a wanted size it holds batch x max_context tokens, but no more than half of what is left,
// and never less than one full context as long as that fits at all. A context that does not fit
// the pool is shortened; below kContextMin tokens (limits.h), unless less was asked for or the
// model knows no more, or one page a sequence the plan does not fit.
KvBudget plan_kv_budget(const KvBudgetInputs& inputs);

}  // namespace strata
