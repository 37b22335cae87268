// The configurations that negotiation plans: what was asked with "auto" resolved, and everything
// near it with fewer or plainer values, in order of how much each gives up. Lists values only;
// whether one can run is the evaluator's question.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/mode.h"

namespace strata {

// What candidates depend on in a model.
struct ModelTraits {
    uint32_t context = 0;  // tokens the model was made for
    bool has_draft_layers = false;
    bool has_experts = false;
};

// The values of a configuration that are chosen before it is planned; all others follow from these,
// the model and the machine.
struct Candidate {
    uint32_t batch = 1;
    std::string mtp = "off";  // with spec and batch_mtp: as in ModePlan
    uint32_t spec = 0;
    bool batch_mtp = false;
    DType kv = DType::F32;
    DType activations = DType::F32;
    std::string expert_cache = "off";
    uint64_t kv_resident = 0;
    uint32_t max_context = 1;
    uint32_t prefill = 1;

    auto operator<=>(const Candidate&) const = default;
};

// How far a candidate is from what was asked.
struct Distance {
    uint32_t axes = 0;  // given up
    uint64_t loss = 0;  // on them: kv, activations, drafts, batch, residency, context, prefill

    auto operator<=>(const Distance&) const = default;
};

struct RankedCandidate {
    Candidate candidate;
    Distance distance;
};

// Throws Error{InvalidRequest, "config.<axis>"} with the allowed range.
void validate_wanted(const WantedModes& want);

// What was asked, with "auto" and 0 replaced by what is tried first: f16 caches, int8 activations,
// the model's context, drafts (3) where the model has draft layers or a drafter's file is named.
// `want` has been validated.
Candidate wanted_candidate(const WantedModes& want, const ModelTraits& traits);

// All combinations near `wanted`, nearest first: batch {wanted, halvings, 1} x drafts {as asked,
// solo, fewer, none} x kv {wanted, f16, f32} x activations {wanted, f32} x residency {wanted,
// none}, all with the wanted prefill and max_context. Begins with `wanted`.
std::vector<RankedCandidate> list_candidates(const Candidate& wanted);

// The least that is still near `wanted`: one sequence, no drafts, f32, nothing resident by choice,
// one prompt row.
Candidate plainest_candidate(const Candidate& wanted);

// The same candidate with a smaller prefill or max_context; it gives up one more axis for each.
RankedCandidate with_prefill(const RankedCandidate& from, uint32_t prefill, size_t halvings);
RankedCandidate with_context(const RankedCandidate& from, uint32_t max_context, size_t halvings);

// value, value/2, ..., 1
std::vector<uint32_t> halvings(uint32_t value);

DType parse_kv(const std::string& name);           // Error "config.kv"
DType parse_activations(const std::string& name);  // Error "config.activations"

}  // namespace strata
