// Plans one candidate as itself: its own step plan, kernels, weights and memory, and everything
// that is in its way. The same candidate is planned once; what depends on rows, sequences and types
// only is shared by candidates that have these in common.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/backend/candidates.h"
#include "engine/backend/host.h"
#include "engine/backend/kv_budget.h"
#include "engine/backend/memory_plan.h"
#include "engine/backend/quarantine.h"
#include "engine/backend/registry.h"
#include "engine/model/drafter.h"
#include "engine/model/model.h"

namespace strata {

// A value of the plan that is below the asked one for another reason than giving the axis up.
struct Shortfall {
    std::string axis;  // a field of ModePlan
    Reason reason;
};

// One point of the modes near what was asked. Configuration of the protocol.
struct Configuration {
    ModePlan plan;
    std::vector<Reason> missing;  // all that is in its way; empty: it can run
    std::vector<Shortfall> shortfalls;
    std::vector<MemoryPart> memory;  // where kernels are missing, weights count as in the file
};

struct Evaluation {
    Configuration configuration;
    // A smaller prefill could clear the way: nothing else than rows and memory is in it.
    bool is_helped_by_fewer_rows = false;
    bool fits_memory = false;
    bool can_run() const { return configuration.missing.empty(); }
};

// What a negotiation starts from. All outlive the evaluator.
struct NegotiationInputs {
    const Model& model;
    const Registry& registry;
    const WantedModes& want;
    const HostFacts& host;
    const DeviceFacts& device;
};

class Evaluator {
  public:
    Evaluator(const NegotiationInputs& inputs, const Quarantine& quarantine);

    const Evaluation& evaluate(const Candidate& candidate);
    // The candidate with the activations that its plan has: those of both kinds are one where no
    // matmul takes int8.
    Candidate planned(const Candidate& candidate);
    // Whether `candidate` is known to lack kernels with `prefill` rows as well, without planning
    // it: a kernel that it lacks is not there for the fewer rows either. False says nothing.
    bool lacks_kernels_with(const Candidate& candidate, uint32_t prefill);
    // Types of KV cache that the kernels serve for this model without drafts, in a candidate's
    // step.
    std::vector<std::string> kv_types(const Candidate& candidate) const;
    const ModelTraits& traits() const { return traits_; }
    // A backend without any kernel: nothing can run, and plans differ by their memory alone.
    bool has_no_kernels() const { return in_.registry.entries().empty(); }

  private:
    // The part of a plan that max_context, residency and memory have no influence on.
    struct StepFacts {
        std::vector<Reason> missing;
        std::vector<PlannedOp> lacking;  // without a kernel, whatever the number of rows is
        bool has_int8 = false;
        MemoryPlan memory;  // without the pool
    };
    using StepKey = std::tuple<uint32_t, uint32_t, DType, DType, std::string, uint32_t, bool>;

    const StepFacts& step_facts(const ModePlan& plan);
    StepFacts plan_step(const ModePlan& plan) const;
    Evaluation plan_candidate(const Candidate& candidate);
    ModePlan first_plan(const Candidate& candidate) const;
    // Returns whether it fits.
    bool fit_memory(const StepFacts& step, const Candidate& candidate, Configuration& out) const;
    // Returns whether another axis than prefill is hidden.
    bool add_quarantined(Configuration& out) const;
    void add_shortfalls(const Candidate& candidate, bool has_int8, Configuration& out) const;

    const NegotiationInputs in_;
    const Quarantine& quarantine_;
    ModelTraits traits_;
    std::vector<Reason> device_reasons_;
    std::optional<Drafter> drafter_;       // of the plans with drafts
    std::vector<Reason> drafter_reasons_;  // why there is none, though one was asked for
    std::map<StepKey, StepFacts> steps_;
    std::map<Candidate, Evaluation> evaluations_;
};

}  // namespace strata
