// The ways in which a plan serves requests, each with what a request may ask for there. CAPS and
// READY state them and the intake holds requests to them, all from here.
#pragma once

#include <span>
#include <vector>

#include "engine/decode/features.h"
#include "engine/plan/mode.h"

namespace strata {

struct ServingMode {
    uint32_t drafts = 0;  // that a sequence verifies per step at most; 0: it runs without drafts
    std::vector<RequestFeature> features;
};

// Preferred first. A plan with drafts serves what they do not serve without them, in the same
// steps; that way is there only where drafts lack one of `features`.
std::vector<ServingMode> serving_modes(
    const ModePlan& plan, std::span<const RequestFeature> features = decode_features());

}  // namespace strata
