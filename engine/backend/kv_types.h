// Which types of KV cache the kernels of a backend serve in a step. Derived: each type is put into
// the step's own requests and looked up as the executor looks up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/backend/registry.h"
#include "engine/backend/resolve.h"

namespace strata {

// In the order of kKvWords. Empty where the plan keeps no keys and values.
std::vector<DType> served_kv_types(const ResolvedPlan& plan, const Registry& registry);

// "f32, f16"
std::string kv_type_list(const std::vector<DType>& types);

// "kernel.kv_type": `kv` has no kernels in this step and other types have; which they are.
std::optional<Reason> kv_type_reason(const ResolvedPlan& plan,
                                     const Registry& registry,
                                     DType kv,
                                     const std::string& backend);

}  // namespace strata
