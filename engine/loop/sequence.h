// A request inside the scheduler: how far its KV has come and where its pages are.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "engine/loop/draft_state.h"
#include "engine/loop/request.h"
#include "engine/plan/limits.h"

namespace strata {

struct Sequence {
    static constexpr uint32_t kNoSlot = 0xFFFF'FFFF;

    explicit Sequence(Request&& taken) : request(std::move(taken)) {}

    Request request;
    uint32_t slot = kNoSlot;     // row of the page tables while running
    uint32_t computed = 0;       // tokens whose KV is in pages
    uint32_t pages = 0;          // pages held, the first entries of the slot's page table
    uint32_t published = 0;      // pages entered in the prefix cache
    uint32_t scored = 1;         // prompt tokens whose logprob is out; the first has none
    uint32_t cached_tokens = 0;  // prompt tokens found in the prefix cache at first admission
    uint32_t step_row = 0;       // first row in the step under way
    uint32_t step_rows = 0;      // rows in the step under way
    uint32_t step_drafts = 0;    // the last ones of these, which verify drafts
    uint32_t step_accepted = 0;  // of these drafts, known once the step has run
    // What may follow the last token: the next step verifies it.
    std::array<int32_t, kSpecMax> drafts{};
    uint32_t draft_count = 0;
    DraftState draft;
    uint32_t drafted_tokens = 0;   // drafts verified so far
    uint32_t accepted_tokens = 0;  // of these
    // With recurrent states, positions at which the state is kept for others (0: nowhere): where
    // the pages known at the beginning end, and the last page border of the tokens known then.
    uint32_t checkpoint_shared = 0;
    uint32_t checkpoint_last = 0;
    uint64_t checkpoint_passing = 0;  // prefix cache's node of the one that moves on; 0 = none
    bool was_preempted = false;
    bool is_parked = false;  // waits for credit; gave its place to another
    bool is_done = false;
    uint64_t admitted_us = 0;     // 0 = never
    uint64_t first_token_us = 0;  // 0 = none yet

    uint32_t length() const { return static_cast<uint32_t>(request.tokens.size()); }
    uint32_t remaining() const { return length() - computed; }
    bool wants_output() const { return request.output_tokens() < request.params().max_tokens; }
    // Out of credit: everything may be computed but the row that would produce a token.
    bool is_held() const { return wants_output() && request.output_tokens() >= request.credit; }
    uint32_t rows_ready() const { return remaining() - (is_held() ? 1u : 0u); }

    // Order of service: priority, then arrival.
    bool is_before(const Sequence& other) const {
        if (request.priority != other.request.priority) {
            return request.priority > other.request.priority;
        }
        return request.arrival < other.request.arrival;
    }
};

}  // namespace strata
