// Python view of planning with drafts: both steps of a mode, what is missing, and the memory.
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/backend/memory_plan.h"
#include "engine/bindings/plan_values.h"
#include "engine/model/drafter.h"

namespace py = pybind11;

namespace {

using strata::Drafter;
using strata::Model;
using strata::ResolvedPlan;
using strata::bindings::memory_dict;
using strata::bindings::ops_list;

py::dict weight_dict(const strata::WeightPlan& weights) {
    py::dict out;
    out["packed_bytes"] = weights.packed_bytes;
    out["mapped_bytes"] = weights.mapped_bytes;
    out["drafters_packed_bytes"] = weights.drafters.packed;
    out["drafters_mapped_bytes"] = weights.drafters.mapped;
    return out;
}

// {"ops", "draft_ops": None without drafts, "rows", "gather_rows", "draft_rows",
// "draft_gather_rows", "missing": [(code, text)], "memory", "weights": both None when incomplete}
py::dict plan_mode(const std::string& path,
                   const strata::ModePlan& plan,
                   const std::string& isa,
                   const std::vector<std::string>& without_kernels) {
    const Model model = Model::open(path);
    const std::optional<Drafter> drafter = Drafter::open(model, plan.mtp, plan.mtp_hidden_norm);
    const Drafter* drafter_or_null = drafter ? &*drafter : nullptr;
    const strata::Registry registry = strata::bindings::make_registry(isa, without_kernels);
    const ResolvedPlan resolved = strata::resolve_mode(model, drafter_or_null, plan, registry);
    py::dict out;
    out["ops"] = ops_list(resolved.step, resolved.resolution);
    out["rows"] = resolved.step.rows;
    out["gather_rows"] = resolved.step.gather_rows;
    out["draft_ops"] = py::none();
    if (resolved.draft) {
        out["draft_ops"] = ops_list(*resolved.draft, resolved.draft_resolution);
        out["draft_rows"] = resolved.draft->rows;
        out["draft_gather_rows"] = resolved.draft->gather_rows;
    }
    py::list missing;
    for (const strata::Reason& reason : resolved.missing()) {
        missing.append(py::make_tuple(reason.code, reason.text));
    }
    out["missing"] = missing;
    out["memory"] = py::none();
    out["weights"] = py::none();
    if (resolved.is_complete()) {
        const strata::WeightPlan weights = strata::plan_weights(model, drafter_or_null, resolved);
        const strata::MemoryPlan memory =
            strata::plan_memory(model, drafter_or_null, plan, resolved, weights);
        out["memory"] = memory_dict(memory.parts());
        out["weights"] = weight_dict(weights);
    }
    return out;
}

}  // namespace

void bind_drafter(py::module_& m) {
    m.def("plan_mode",
          &plan_mode,
          py::arg("path"),
          py::arg("plan"),
          py::kw_only(),
          py::arg("isa") = "auto",
          py::arg("without_kernels") = std::vector<std::string>(),
          "Both steps of a plan, what they miss and the memory they take, from headers alone.");
}
