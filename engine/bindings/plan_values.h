// Plans and reports as Python values, shared by the bindings of planning and of the executor.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "engine/backend/registry.h"
#include "engine/backend/resolve.h"

namespace strata::bindings {

// The CPU backend's kernels up to `isa`, without those that the masks hide.
Registry make_registry(const std::string& isa, const std::vector<std::string>& masks);

pybind11::dict plan_dict(const ModePlan& plan);
pybind11::dict memory_dict(const std::vector<MemoryPart>& parts);  // name: bytes
// Per operation its request, tensor, layer and the id of its kernel or None.
pybind11::list ops_list(const StepPlan& step, const Resolution& resolution);

}  // namespace strata::bindings
