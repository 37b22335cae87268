// What a plan asks that no lookup in the registry can answer: parts of the engine that are not
// written, and sizes that no kernel could have. Reports and the executor both ask here, so that a
// plan which one refuses the other does not run. A part that gets built is taken out here.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/model/hparams.h"
#include "engine/plan/mode.h"

namespace strata {

// "kv.block": heads are no whole number of the KV type's blocks. "mode.not_built": experts in a
// memory of their own, KV that is partly resident.
std::vector<Reason> unbuilt_reasons(const Hparams& hparams, const ModePlan& plan);

}  // namespace strata
