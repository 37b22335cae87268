// Python view of planning: sizes of a model file, negotiation, the operations of a plan.
#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "engine/backend/candidates.h"
#include "engine/backend/capability.h"
#include "engine/backend/cpu_runtime.h"
#include "engine/backend/mode_words.h"
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
    out["mtp"] = plan.mtp;
    out["spec"] = plan.spec;
    out["spec_min_p"] = plan.spec_min_p;
    out["batch_mtp"] = plan.batch_mtp;
    out["mmap"] = plan.mmap;
    out["mlock"] = plan.mlock;
    out["expert_cache"] = plan.expert_cache;
    out["kv_resident"] = plan.kv_resident;
    out["mtp_hidden_norm"] = plan.mtp_hidden_norm;
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

// {"plan": {...}, "missing": [...], "shortfalls": {axis: [...]}, "memory": {...}}
py::dict configuration_dict(const strata::Configuration& configuration) {
    py::dict shortfalls;
    for (const strata::Shortfall& shortfall : configuration.shortfalls) {
        const py::str axis(shortfall.axis);
        if (!shortfalls.contains(axis)) shortfalls[axis] = py::list();
        shortfalls[axis].cast<py::list>().append(reasons_list({shortfall.reason})[0]);
    }
    py::dict out;
    out["plan"] = plan_dict(configuration.plan);
    out["missing"] = reasons_list(configuration.missing);
    out["shortfalls"] = shortfalls;
    out["memory"] = memory_dict(configuration.memory);
    return out;
}

// {"configurations": [...], "plainest": index, "plan": {...}, "memory": {...}, "refused": []}; plan
// and memory are those of the first that can run, None and {} when nothing can.
py::dict negotiation_dict(const strata::Negotiation& negotiation) {
    py::dict out;
    py::list configurations;
    for (const strata::Configuration& configuration : negotiation.configurations) {
        configurations.append(configuration_dict(configuration));
    }
    out["configurations"] = configurations;
    out["plainest"] = negotiation.plainest;
    out["kv_types"] = negotiation.kv_types;
    out["plan"] = py::none();
    out["memory"] = py::dict();
    out["refused"] = py::list();
    if (negotiation.best) {
        const strata::Configuration& best = negotiation.configurations[*negotiation.best];
        out["plan"] = plan_dict(best.plan);
        out["memory"] = memory_dict(best.memory);
    } else {
        out["refused"] = reasons_list(negotiation.refusal());
    }
    return out;
}

constexpr const char* kDeviceName = "Test Processor";

strata::HostFacts host_with(const std::string& isa,
                            std::optional<uint64_t> memory_available,
                            std::optional<uint64_t> memory_lockable,
                            std::optional<uint32_t> cores) {
    strata::HostFacts host = strata::read_host_facts();
    host.isa = isa;
    host.memory_available_bytes = memory_available.value_or(host.memory_available_bytes);
    host.memory_lockable_bytes = memory_lockable.value_or(host.memory_lockable_bytes);
    host.cores = cores.value_or(host.cores);
    return host;
}

py::dict negotiate(const std::string& path,
                   const strata::WantedModes& want,
                   const std::string& isa,
                   const std::vector<std::string>& without_kernels,
                   const std::vector<std::string>& quarantine,
                   std::optional<uint64_t> memory_available,
                   std::optional<uint64_t> memory_lockable,
                   std::optional<uint32_t> cores) {
    const strata::Model model = strata::Model::open(path);
    const strata::Registry registry = make_registry(isa, without_kernels);
    const strata::HostFacts host = host_with(isa, memory_available, memory_lockable, cores);
    const strata::DeviceFacts device{
        kDeviceName, "cpu", host.memory_total_bytes, host.memory_available_bytes, true};
    return negotiation_dict(strata::negotiate({model, registry, want, host, device}, quarantine));
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

py::dict model_facts(const std::string& path, const std::string& ple) {
    const strata::ModelFacts facts = strata::Model::open(path, ple).facts();
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

// (frequencies, magnitude) of a model's rope before the file's factors.
py::tuple rope_table(const std::string& path) {
    const strata::Model model = strata::Model::open(path);
    return py::make_tuple(strata::rope_frequencies(model.hparams()),
                          model.hparams().rope_scaling.magnitude);
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

// A record with the fields that Python names; AttributeError for a name that is none.
template <class T>
T record_of(const py::kwargs& fields) {
    T record;
    const py::object view = py::cast(&record, py::return_value_policy::reference);
    for (const auto& [name, value] : fields) {
        py::setattr(view, name, value);
    }
    return record;
}

void bind_wanted_modes(py::module_& m) {
    using strata::WantedModes;
    py::class_<WantedModes>(m, "WantedModes")
        .def(py::init(&record_of<WantedModes>))
        .def_readwrite("batch", &WantedModes::batch)
        .def_readwrite("max_context", &WantedModes::max_context)
        .def_readwrite("kv", &WantedModes::kv)
        .def_readwrite("prefill", &WantedModes::prefill)
        .def_readwrite("activations", &WantedModes::activations)
        .def_readwrite("threads", &WantedModes::threads)
        .def_readwrite("kv_tokens", &WantedModes::kv_tokens)
        .def_readwrite("prefix_cache", &WantedModes::prefix_cache)
        .def_readwrite("mtp", &WantedModes::mtp)
        .def_readwrite("spec", &WantedModes::spec)
        .def_readwrite("spec_min_p", &WantedModes::spec_min_p)
        .def_readwrite("batch_mtp", &WantedModes::batch_mtp)
        .def_readwrite("device", &WantedModes::device)
        .def_readwrite("device_memory", &WantedModes::device_memory)
        .def_readwrite("mmap", &WantedModes::mmap)
        .def_readwrite("mlock", &WantedModes::mlock)
        .def_readwrite("expert_cache", &WantedModes::expert_cache)
        .def_readwrite("kv_resident", &WantedModes::kv_resident)
        .def_readwrite("mtp_hidden_norm", &WantedModes::mtp_hidden_norm);
}

void bind_mode_plan(py::module_& m) {
    using strata::ModePlan;
    py::class_<ModePlan>(m, "ModePlan")
        .def(py::init(&record_of<ModePlan>))
        .def_readwrite("batch", &ModePlan::batch)
        .def_readwrite("max_context", &ModePlan::max_context)
        .def_property(
            "kv",
            [](const ModePlan& plan) { return strata::kv_name(plan.kv); },
            [](ModePlan& plan, const std::string& word) { plan.kv = strata::parse_kv(word); })
        .def_readwrite("prefill", &ModePlan::prefill)
        .def_property(
            "activations",
            [](const ModePlan& plan) { return strata::activations_name(plan.activations); },
            [](ModePlan& plan, const std::string& word) {
                plan.activations = strata::parse_activations(word);
            })
        .def_readwrite("threads", &ModePlan::threads)
        .def_readwrite("kv_tokens", &ModePlan::kv_tokens)
        .def_readwrite("prefix_cache", &ModePlan::prefix_cache)
        .def_readwrite("mtp", &ModePlan::mtp)
        .def_readwrite("spec", &ModePlan::spec)
        .def_readwrite("spec_min_p", &ModePlan::spec_min_p)
        .def_readwrite("batch_mtp", &ModePlan::batch_mtp)
        .def_readwrite("mmap", &ModePlan::mmap)
        .def_readwrite("mlock", &ModePlan::mlock)
        .def_readwrite("expert_cache", &ModePlan::expert_cache)
        .def_readwrite("kv_resident", &ModePlan::kv_resident)
        .def_readwrite("mtp_hidden_norm", &ModePlan::mtp_hidden_norm);
}

}  // namespace

void bind_plan(py::module_& m) {
    using py::arg;
    bind_wanted_modes(m);
    bind_mode_plan(m);
    m.def("negotiate",
          &negotiate,
          arg("path"),
          arg("want"),
          py::kw_only(),
          arg("isa") = "auto",
          arg("without_kernels") = std::vector<std::string>(),
          arg("quarantine") = std::vector<std::string>(),
          arg("memory_available") = py::none(),
          arg("memory_lockable") = py::none(),
          arg("cores") = py::none(),
          "All configurations near `want` from headers alone, and the first that can run;"
          " `refused` lists reasons when none can.");
    m.def("plan_ops",
          &plan_ops,
          arg("path"),
          arg("plan"),
          py::kw_only(),
          arg("isa") = "auto",
          arg("without_kernels") = std::vector<std::string>(),
          "Requests of a plan in order, each with the id of its kernel or None.");
    m.def("rope_table", &rope_table, arg("path"));
    m.def("model_facts", &model_facts, arg("path"), arg("ple") = "");
    m.def("host_facts", &host_facts);
    m.attr("PAGE_TOKENS") = strata::kPageTokens;
    m.attr("DEVICE_NAME") = kDeviceName;
}
