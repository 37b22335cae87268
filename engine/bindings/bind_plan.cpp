// Python view of planning: sizes of a model file, negotiation, the operations of a plan.
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <variant>

#include "engine/backend/candidates.h"
#include "engine/backend/capability.h"
#include "engine/backend/cpu_runtime.h"
#include "engine/base/cpu_features.h"
#include "engine/bindings/plan_values.h"
#include "engine/cpu/kernels.h"
#include "engine/model/model.h"

namespace py = pybind11;

namespace strata::bindings {

Registry make_registry(const std::string& isa, const std::vector<std::string>& masks) {
    std::vector<KernelMask> parsed;
    for (const std::string& text : masks) {
        parsed.push_back(KernelMask::parse(text));
    }
    return Registry(cpu_kernels(limit_isa(detect_cpu(), isa)), std::move(parsed));
}

py::dict plan_dict(const ModePlan& plan) {
    py::dict out;
    out["batch"] = plan.batch;
    out["max_context"] = plan.max_context;
    out["kv"] = kv_name(plan.kv);
    out["prefill"] = plan.prefill;
    out["activations"] = activations_name(plan.activations);
    out["threads"] = plan.threads;
    out["kv_tokens"] = plan.kv_tokens;
    out["prefix_cache"] = plan.prefix_cache;
    return out;
}

py::dict memory_dict(const std::vector<MemoryPart>& parts) {
    py::dict out;
    for (const MemoryPart& part : parts) {
        out[py::str(part.name)] = part.bytes;
    }
    return out;
}

py::list ops_list(const StepPlan& step, const Resolution& resolution) {
    py::list out;
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const KernelEntry* kernel = resolution.kernels[i];
        py::dict op;
        op["op"] = std::string(op_name(step.ops[i].request.kind));
        op["request"] = describe(step.ops[i].request);
        op["layer"] = step.ops[i].request.layer;
        op["tensor"] = step.ops[i].request.tensor;
        op["gathered"] = step.ops[i].gathered;
        op["kernel"] = kernel == nullptr ? py::object(py::none())
                                         : py::object(py::str(std::string(kernel->id)));
        out.append(op);
    }
    return out;
}

}  // namespace strata::bindings

namespace {

using strata::bindings::make_registry;
using strata::bindings::memory_dict;
using strata::bindings::ops_list;
using strata::bindings::plan_dict;

py::list reasons_list(const std::vector<strata::Reason>& reasons) {
    py::list out;
    for (const strata::Reason& reason : reasons) {
        py::dict item;
        item["code"] = reason.code;
        item["text"] = reason.text;
        out.append(item);
    }
    return out;
}

const char* state_name(strata::ModeState state) {
    switch (state) {
        case strata::ModeState::Ready:
            return "ready";
        case strata::ModeState::Limited:
            return "limited";
        case strata::ModeState::Unsupported:
            return "unsupported";
    }
    return "unsupported";
}

// {"modes": {name: {...}}, "plan": {...}, "memory": {...}, "refused": []}; plan None when refused.
py::dict negotiation_dict(const std::variant<strata::Negotiation, strata::Refusal>& result) {
    py::dict out;
    py::dict modes;
    out["plan"] = py::none();
    out["memory"] = py::dict();
    out["refused"] = py::list();
    if (const auto* refusal = std::get_if<strata::Refusal>(&result)) {
        out["refused"] = reasons_list(refusal->reasons);
    } else {
        const auto& negotiation = std::get<strata::Negotiation>(result);
        for (const strata::ModeReport& report : negotiation.modes) {
            py::dict mode;
            mode["state"] = state_name(report.state);
            mode["requested"] = report.requested;
            mode["available"] = report.available;
            mode["reasons"] = reasons_list(report.reasons);
            modes[py::str(report.name)] = mode;
        }
        out["plan"] = plan_dict(negotiation.plan);
        out["memory"] = memory_dict(negotiation.memory);
    }
    out["modes"] = modes;
    return out;
}

strata::HostFacts host_with(const std::string& isa,
                            std::optional<uint64_t> memory_available,
                            std::optional<uint32_t> cores) {
    strata::HostFacts host = strata::read_host_facts();
    host.isa = isa;
    host.memory_available_bytes = memory_available.value_or(host.memory_available_bytes);
    host.cores = cores.value_or(host.cores);
    return host;
}

py::dict negotiate(const std::string& path,
                   const strata::WantedModes& want,
                   const std::string& isa,
                   const std::vector<std::string>& without_kernels,
                   const std::vector<std::string>& quarantine,
                   std::optional<uint64_t> memory_available,
                   std::optional<uint32_t> cores) {
    const strata::Model model = strata::Model::open(path);
    const strata::Registry registry = make_registry(isa, without_kernels);
    return negotiation_dict(strata::negotiate(
        model, want, registry, host_with(isa, memory_available, cores), quarantine));
}

// Requests and kernels of one plan, without loading weights.
py::list plan_ops(const std::string& path,
                  const strata::ModePlan& plan,
                  const std::string& isa,
                  const std::vector<std::string>& without_kernels) {
    const strata::Model model = strata::Model::open(path);
    strata::validate_plan(model, plan);
    const strata::Registry registry = make_registry(isa, without_kernels);
    const strata::ResolvedPlan resolved = strata::resolve_mode(model, nullptr, plan, registry);
    return ops_list(resolved.step, resolved.resolution);
}

py::dict model_facts(const std::string& path) {
    const strata::ModelFacts facts = strata::Model::open(path).facts();
    py::dict out;
    out["architecture"] = facts.architecture;
    out["name"] = facts.name;
    out["file_bytes"] = facts.file_bytes;
    out["parameters"] = facts.parameters;
    out["layers"] = facts.layers;
    out["vocab"] = facts.vocab;
    out["context"] = facts.context;
    out["types"] = facts.types;
    out["sha256_head"] = facts.sha256_head;
    return out;
}

py::dict host_facts() {
    const strata::HostFacts facts = strata::read_host_facts();
    py::dict out;
    out["os"] = facts.os;
    out["cpu"] = facts.cpu;
    out["cores"] = facts.cores;
    out["memory_total_bytes"] = facts.memory_total_bytes;
    out["memory_available_bytes"] = facts.memory_available_bytes;
    return out;
}

strata::WantedModes wanted_modes(uint32_t batch,
                                 uint32_t max_context,
                                 std::string kv,
                                 uint32_t prefill,
                                 std::string activations,
                                 uint32_t threads,
                                 uint64_t kv_tokens,
                                 bool prefix_cache) {
    strata::WantedModes want;
    want.batch = batch;
    want.max_context = max_context;
    want.kv = std::move(kv);
    want.prefill = prefill;
    want.activations = std::move(activations);
    want.threads = threads;
    want.kv_tokens = kv_tokens;
    want.prefix_cache = prefix_cache;
    return want;
}

strata::ModePlan mode_plan(uint32_t batch,
                           uint32_t max_context,
                           const std::string& kv,
                           uint32_t prefill,
                           const std::string& activations,
                           uint32_t threads,
                           uint64_t kv_tokens,
                           const std::string& mtp,
                           uint32_t spec,
                           bool batch_mtp) {
    strata::ModePlan plan;
    plan.batch = batch;
    plan.max_context = max_context;
    plan.kv = strata::parse_kv(kv);
    plan.prefill = prefill;
    plan.activations = strata::parse_activations(activations);
    plan.threads = threads;
    plan.kv_tokens = kv_tokens;
    plan.mtp = mtp;
    plan.spec = spec;
    plan.batch_mtp = batch_mtp;
    return plan;
}

}  // namespace

void bind_plan(py::module_& m) {
    using py::arg;
    py::class_<strata::WantedModes>(m, "WantedModes")
        .def(py::init(&wanted_modes),
             py::kw_only(),
             arg("batch") = 8,
             arg("max_context") = 0,
             arg("kv") = "auto",
             arg("prefill") = 256,
             arg("activations") = "auto",
             arg("threads") = 0,
             arg("kv_tokens") = 0,
             arg("prefix_cache") = true);
    py::class_<strata::ModePlan>(m, "ModePlan")
        .def(py::init(&mode_plan),
             py::kw_only(),
             arg("batch") = 1,
             arg("max_context"),
             arg("kv") = "f16",
             arg("prefill") = 256,
             arg("activations") = "int8",
             arg("threads") = 1,
             arg("kv_tokens"),
             arg("mtp") = "off",
             arg("spec") = 0,
             arg("batch_mtp") = false);
    m.def("negotiate",
          &negotiate,
          arg("path"),
          arg("want"),
          py::kw_only(),
          arg("isa") = "auto",
          arg("without_kernels") = std::vector<std::string>(),
          arg("quarantine") = std::vector<std::string>(),
          arg("memory_available") = py::none(),
          arg("cores") = py::none(),
          "Modes, plan and memory from headers alone; `refused` lists reasons when nothing runs.");
    m.def("plan_ops",
          &plan_ops,
          arg("path"),
          arg("plan"),
          py::kw_only(),
          arg("isa") = "auto",
          arg("without_kernels") = std::vector<std::string>(),
          "Requests of a plan in order, each with the id of its kernel or None.");
    m.def("model_facts", &model_facts, arg("path"));
    m.def("host_facts", &host_facts);
    m.attr("PAGE_TOKENS") = strata::kPageTokens;
}
