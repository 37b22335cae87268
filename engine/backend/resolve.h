// Finds the kernels of a mode's step plans. Capability reports and the executor both go through
// here, so what is reported is what runs.
#pragma once

#include <optional>
#include <vector>

#include "engine/backend/registry.h"
#include "engine/plan/step_plan.h"

namespace strata {

struct Resolution {
    std::vector<const KernelEntry*> kernels;  // one per operation; null where none was found
    std::vector<Reason> missing;              // "kernel.missing", one per distinct request

    bool is_complete() const { return missing.empty(); }
};

// Looks up every operation. `missing` lists all requests without a kernel, each once with its
// types, shapes and every tensor that needs it.
Resolution resolve(const StepPlan& plan, const Registry& registry);

// The steps of a mode with their kernels. A mode with drafts has two: the model's step, which
// verifies drafts, and the drafter's.
struct ResolvedPlan {
    StepPlan step;
    Resolution resolution;
    std::optional<StepPlan> draft;  // with plan.spec > 0
    Resolution draft_resolution;

    bool is_complete() const { return resolution.is_complete() && draft_resolution.is_complete(); }
    // Of both steps; texts about the drafter's begin with "drafter: ".
    std::vector<Reason> missing() const;
};

// Builds the step plans of a mode and resolves them. `drafter` drafts for `model`; it is used, and
// then must be given, where plan.spec > 0. Throws Error{InvalidRequest, "drafter.none"} without it.
ResolvedPlan resolve_mode(const Model& model,
                          const Drafter* drafter,
                          const ModePlan& plan,
                          const Registry& registry);

}  // namespace strata
