// Finds the kernels of a step plan. Capability reports and the executor both go through here, so
// what is reported is what runs.
#pragma once

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
// types, shapes, first tensor and the number of further operations that need the same.
Resolution resolve(const StepPlan& plan, const Registry& registry);

// Builds the step plan of a mode and resolves it.
struct ResolvedPlan {
    StepPlan step;
    Resolution resolution;
};
ResolvedPlan resolve_mode(const Model& model, const ModePlan& plan, const Registry& registry);

}  // namespace strata
