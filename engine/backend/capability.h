// Capability negotiation: from what was asked, the model's headers, the registry and the machine to
// what can run, and why it differs. Nothing is declared: a value is offered because a plan with it
// resolves in the registry and fits the memory.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "engine/backend/host.h"
#include "engine/backend/registry.h"
#include "engine/model/model.h"
#include "engine/plan/mode.h"

namespace strata {

struct Negotiation {
    std::vector<ModeReport> modes;   // batch, max_context, kv, prefill, activations, threads, ...
    ModePlan plan;                   // the best configuration that can run
    std::vector<MemoryPart> memory;  // of `plan`
};

// Plans candidates as themselves, those closest to what was asked first, and takes the first that
// resolves and fits. Where not even batch 1 with f32 caches and activations does, the answer is a
// Refusal with everything that is missing.
//
// `quarantine` lists modes that must not be offered: an axis ("batch": one sequence; "kv",
// "activations": f32; "prefill": one row; "prefix_cache": off) or an axis and a value ("kv=f16";
// "batch=8": fewer than 8).
//
// Throws Error{InvalidRequest}: "config.<axis>" for a value out of range, "config.quarantine" for
// an entry that cannot be read.
std::variant<Negotiation, Refusal> negotiate(const Model& model,
                                             const WantedModes& want,
                                             const Registry& registry,
                                             const HostFacts& host,
                                             const std::vector<std::string>& quarantine);

}  // namespace strata
