#include "engine/backend/kv_budget.h"

#include <algorithm>

#include "engine/plan/limits.h"

namespace strata {

namespace {

uint64_t whole_pages_up(uint64_t tokens) {
    return (tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
}

uint64_t whole_pages_down(uint64_t tokens) {
    return tokens / kPageTokens * kPageTokens;
}

std::string mib(uint64_t bytes) {
    return std::to_string((bytes + (1u << 19)) >> 20) + " MiB";
}

uint64_t other_bytes(const KvBudgetInputs& in) {
    uint64_t bytes = 0;
    for (const MemoryPart& part : in.others) bytes += part.bytes;
    return bytes;
}

uint64_t usable_bytes(const KvBudgetInputs& in) {
    const uint64_t kept = in.available_bytes / 20 + other_bytes(in);
    return in.available_bytes > kept ? in.available_bytes - kept : 0;
}

std::string kv_need_text(const KvBudgetInputs& in, uint64_t tokens) {
    return std::to_string(tokens) + " tokens of keys and values need " +
           mib(tokens * in.token_bytes) + " (" + std::to_string(in.token_bytes) + " bytes a token)";
}

std::string shortage_text(const KvBudgetInputs& in, uint64_t tokens, uint64_t chosen) {
    return kv_need_text(in, tokens) + "; " + mib(usable_bytes(in)) + " of " +
           mib(in.available_bytes) + " " + in.available_text + " are left after " +
           mib(other_bytes(in)) + " for everything else and a margin; chose " +
           std::to_string(chosen) + " tokens";
}

// Need by part against what is there, of the asked pool and of the least: nothing was chosen.
std::string refusal_text(const KvBudgetInputs& in, uint64_t asked, uint64_t least) {
    std::string parts;
    for (const MemoryPart& part : in.others) {
        if (part.bytes > 0) parts += part.name + " " + mib(part.bytes) + ", ";
    }
    const auto need = [&](uint64_t tokens) {
        return mib(other_bytes(in) + tokens * in.token_bytes);
    };
    const auto kv = [&](uint64_t tokens) {
        return mib(tokens * in.token_bytes) + " for " + std::to_string(tokens) + " tokens";
    };
    std::string text = "need " + need(asked) + " (" + parts + "kv " + in.kv + " " + kv(asked) +
                       ", " + std::to_string(in.token_bytes) + " bytes each)";
    if (least < asked) {
        text += ", or " + need(least) + " with the least kv, " + kv(least);
    }
    return text + "; have " + mib(in.available_bytes) + " " + in.available_text +
           " less a twentieth as margin; no less can serve a batch of " + std::to_string(in.batch);
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
    budget.max_context = in.max_context;
    const uint64_t least = std::max<uint64_t>(std::min<uint64_t>(context, kContextMin),
                                              uint64_t{in.batch} * kPageTokens);
    if (affordable < least) {
        budget.kv_tokens = least;
        budget.max_context = static_cast<uint32_t>(std::min<uint64_t>(in.max_context, least));
        // The smallest pool in which nothing that was asked for is shortened.
        const uint64_t asked = std::max(in.kv_tokens > 0 ? wanted : context, least);
        budget.refused.push_back({"mem.insufficient", refusal_text(in, asked, least)});
        return budget;
    }
    budget.kv_tokens = std::max(std::min(wanted, affordable), uint64_t{in.batch} * kPageTokens);
    if (in.kv_tokens > 0 && budget.kv_tokens < wanted) {
        budget.tokens_reasons.push_back(
            {"mem.kv_budget", shortage_text(in, wanted, budget.kv_tokens)});
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
                        : shortage_text(in, context, budget.kv_tokens)});
    }
    return budget;
}

}  // namespace strata
