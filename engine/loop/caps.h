// CAPS from a negotiation: reasons are written once and referred to by index, and the whole fits
// the frame that it travels in.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/backend/capability.h"
#include "engine/loop/backend.h"
#include "protocol/cpp/messages.h"

namespace strata {

struct CapsAnswer {
    protocol::Caps caps;
    std::vector<Reason> refusal;         // not empty: no configuration can run, REFUSE says why
    std::vector<Configuration> unready;  // of the negotiation, those that cannot run

    // All that is in the way of a plan that was reported not to run; else empty.
    std::vector<Reason> in_the_way_of(const ModePlan& plan) const;
};

// Longest payload of CAPS and REFUSE: the limit in force until READY.
inline constexpr size_t kCapsBytesMax = protocol::Limits{}.data_bytes;

// What this backend can do with a model. Throws as negotiate().
CapsAnswer make_caps(const Backend& backend,
                     const Model& model,
                     const WantedModes& want,
                     const Registry& registry,
                     const std::vector<std::string>& quarantine);

// Fills configurations and reasons. Where not all fit `bytes_max` with the rest of `caps`, those
// that cannot run are left out first, farthest first, then those that can; never the first and the
// plainest, whose lists of reasons are cut instead ("caps.shortened" tells it).
void add_configurations(protocol::Caps& caps, const Negotiation& negotiation, size_t bytes_max);

// "config.without_kernel" for each mask that hides nothing of the backend.
std::vector<Reason> idle_mask_notes(const Registry& registry, const std::string& backend);

// As many reasons as fit `bytes_max`, and how many more there are ("caps.shortened").
std::vector<Reason> bounded(std::vector<Reason> reasons, size_t bytes_max);

}  // namespace strata
