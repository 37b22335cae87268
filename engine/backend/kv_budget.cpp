#include "engine/backend/kv_budget.h"

#include <algorithm>
#include <string>

#include "engine/plan/limits.h"
#include "engine/plan/mode.h"

namespace strata {

namespace {

constexpr uint32_t kContextMin = 256;

uint64_t whole_pages_up(uint64_t tokens) {
    return (tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
}

uint64_t whole_pages_down(uint64_t tokens) {
    return tokens / kPageTokens * kPageTokens;
}

std::string mib(uint64_t bytes) {
    return std::to_string((bytes + (1u << 19)) >> 20) + " MiB";
}

uint64_t usable_bytes(const KvBudgetInputs& in) {
    const uint64_t kept = in.available_bytes / 20 + in.other_bytes;
    return in.available_bytes > kept ? in.available_bytes - kept : 0;
}

std::string shortage_text(const KvBudgetInputs& in, uint64_t tokens) {
    return std::to_string(tokens) + " tokens of keys and values need " +
           mib(tokens * in.token_bytes) + " (" + std::to_string(in.token_bytes) +
           " bytes a token); " + mib(usable_bytes(in)) + " of " + mib(in.available_bytes) +
           " available memory are left after " + mib(in.other_bytes) +
           " for everything else and a margin";
}

}  // namespace

KvBudget plan_kv_budget(const KvBudgetInputs& in) {
    const uint64_t context = whole_pages_up(in.max_context);
    const uint64_t affordable =
        in.available_bytes == 0
            ? kKvTokensMax
            : whole_pages_down(std::min(kKvTokensMax, usable_bytes(in) / in.token_bytes));
    const uint64_t all = std::min(in.batch * context, kKvTokensMax);
    const uint64_t moderate = std::max(context, whole_pages_down(affordable / 2));
    const uint64_t wanted =
        in.kv_tokens > 0 ? whole_pages_up(in.kv_tokens) : std::min(all, moderate);

    KvBudget budget;
    const uint64_t least = std::max<uint64_t>(std::min<uint64_t>(context, kContextMin),
                                              uint64_t{in.batch} * kPageTokens);
    if (affordable < least) {
        budget.refused.push_back(
            {"mem.insufficient", shortage_text(in, least) + "; no less can serve"});
        return budget;
    }
    budget.kv_tokens = std::max(std::min(wanted, affordable), uint64_t{in.batch} * kPageTokens);
    budget.max_context = in.max_context;
    if (in.kv_tokens > 0 && budget.kv_tokens < wanted) {
        budget.tokens_reasons.push_back({"mem.kv_budget", shortage_text(in, wanted)});
    }
    if (in.kv_tokens > 0 && budget.kv_tokens > wanted) {
        budget.tokens_reasons.push_back({"mem.kv_minimum",
                                         "each of " + std::to_string(in.batch) +
                                             " sequences needs a page of " +
                                             std::to_string(kPageTokens) + " tokens"});
    }
    if (budget.kv_tokens < in.max_context) {
        budget.max_context = static_cast<uint32_t>(budget.kv_tokens);
        const bool by_request = in.kv_tokens > 0 && affordable >= wanted;
        budget.context_reasons.push_back(
            {"mem.kv_budget",
             by_request ? "kv_tokens of " + std::to_string(in.kv_tokens) + " hold no more than " +
                              std::to_string(budget.kv_tokens) + " tokens"
                        : shortage_text(in, context)});
    }
    return budget;
}

}  // namespace strata
