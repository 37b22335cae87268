// Assigns activation buffers to the values of a step: values that never live at the same time
// share one, so that a step's working set stays small enough for the caches.
#pragma once

#include <vector>

#include "engine/plan/step_plan.h"

namespace strata {

// On entry x, y, out of the operations are ValueIds of the graph and quant numbers index
// `quant_values`; on return they are slots of the plan, whose slot lists are filled in. The output
// of an operation never shares a slot with an input, except where it changes that input in place.
// Logits, and with `keeps_hidden` the hidden state, keep their slots to the end of the step; a
// value that is given with the step has its slot from the beginning.
void assign_slots(StepPlan& step,
                  const Graph& graph,
                  const std::vector<Value>& quant_values,
                  bool keeps_hidden);

}  // namespace strata
