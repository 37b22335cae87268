// Capability negotiation: from what was asked, the model's headers, the registry and the machine to
// every configuration near it, each with all that is in its way. Nothing is declared: a
// configuration can run because its plan resolves in the registry and fits the memory. Which of
// them runs is the supervisor's choice.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/evaluation.h"

namespace strata {

inline constexpr size_t kRefusalReasonsMax = 64;

struct Negotiation {
    // What was asked comes first, then those that give up fewer axes.
    std::vector<Configuration> configurations;
    size_t plainest = 0;                // the configuration that asks least
    std::optional<size_t> best;         // the first that can run
    std::vector<std::string> kv_types;  // that the backend's kernels serve for the model

    // All that is in the way of the plainest configuration, where that is memory the need of what
    // was asked and of the smallest configuration; then what else is in the way of the others, up
    // to kRefusalReasonsMax: a reason of theirs that differs in numbers only (rows, sequences,
    // bytes) says nothing new. For when nothing can run.
    std::vector<Reason> refusal() const;
};

// Plans each candidate (candidates.h) as itself. Where one cannot run with the wanted prefill, the
// largest halving with which it can is another; likewise max_context where quarantine hides it.
//
// `quarantine` lists modes that must not run, as AXIS or AXIS=VALUE (quarantine.h): a hidden value
// is a reason against the configurations that have it; prefix_cache is switched off instead.
//
// Throws Error{InvalidRequest}: "config.<axis>" for a value out of range, "config.quarantine" for
// an entry that cannot be read.
Negotiation negotiate(const NegotiationInputs& inputs, const std::vector<std::string>& quarantine);

}  // namespace strata
