#include "engine/plan/step_plan.h"

#include <utility>

#include "engine/plan/lowering.h"
#include "engine/plan/slots.h"

namespace strata {

namespace {

StepPlan build(const LoweringSource& source, const ModePlan& plan, const ResolvesFn& resolves) {
    Lowering lowering(source, plan, resolves);
    lowering.run();
    StepPlan step;
    step.rows = source.rows;
    step.gather_rows = source.gather_rows;
    step.ops = std::move(lowering.ops);
    step.state_floats = lowering.state_floats;
    assign_slots(step, source.graph, lowering.quant_values, source.keeps_hidden);
    return step;
}

}  // namespace

StepPlan build_step_plan(const Model& model, const ModePlan& plan, const ResolvesFn& resolves) {
    const bool is_drafted = plan.spec > 0;
    return build({model.hparams(),
                  is_drafted ? model.drafted_graph() : model.graph(),
                  model.files(),
                  plan.rows_max(),
                  gather_rows_of(plan, model.hparams().vocab),
                  is_drafted,
                  plan.spec},
                 plan,
                 resolves);
}

StepPlan build_draft_plan(const Drafter& drafter,
                          const ModePlan& plan,
                          const ResolvesFn& resolves) {
    return build({drafter.hparams(),
                  drafter.graph(),
                  drafter.files(),
                  plan.rows_max(),
                  draft_sequences_of(plan),
                  true,
                  /*undo=*/0},
                 plan,
                 resolves);
}

}  // namespace strata
