// What drafting keeps of one sequence beside the hidden states: how far the draft layer's cache has
// come, and how well drafts have done.
#pragma once

#include <array>
#include <cstdint>

#include "engine/plan/limits.h"

namespace strata {

// Drafts of one place behind the last token, aged: old ones count less.
struct Acceptance {
    float tried = 0;
    float accepted = 0;
};

struct DraftState {
    uint32_t rows = 0;  // positions that the draft layer's cache holds, each from certain inputs
    uint32_t next = 0;  // positions whose hidden states have been taken in
    std::array<Acceptance, kSpecMax> by_place{};
    uint32_t idle_steps = 0;   // decode steps since the last draft
    uint32_t retry_after = 0;  // idle steps until drafts are tried again; 0 = never stopped
    uint32_t trial_steps = 0;  // left of a trial
};

}  // namespace strata
