// Python view of models, plans, negotiation and the executor: what tests/model, tests/modes and
// tools/logits.py drive. The same classes as the engine process, without its loop.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/candidates.h"
#include "engine/backend/capability.h"
#include "engine/backend/cpu_runtime.h"
#include "engine/base/cpu_features.h"
#include "engine/cpu/kernels.h"
#include "engine/model/architecture.h"
#include "engine/model/model.h"

namespace py = pybind11;

namespace {

using strata::Error;
using strata::ErrorKind;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

strata::Registry make_registry(const std::string& isa, const std::vector<std::string>& masks) {
    std::vector<strata::KernelMask> parsed;
    for (const std::string& text : masks) {
        parsed.push_back(strata::KernelMask::parse(text));
    }
    return strata::Registry(strata::cpu_kernels(strata::limit_isa(strata::detect_cpu(), isa)),
                            std::move(parsed));
}

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

py::dict plan_dict(const strata::ModePlan& plan) {
    py::dict out;
    out["batch"] = plan.batch;
    out["max_context"] = plan.max_context;
    out["kv"] = strata::kv_name(plan.kv);
    out["prefill"] = plan.prefill;
    out["activations"] = strata::activations_name(plan.activations);
    out["threads"] = plan.threads;
    out["kv_tokens"] = plan.kv_tokens;
    out["prefix_cache"] = plan.prefix_cache;
    return out;
}

py::dict memory_dict(const std::vector<strata::MemoryPart>& parts) {
    py::dict out;
    for (const strata::MemoryPart& part : parts) {
        out[py::str(part.name)] = part.bytes;
    }
    return out;
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

py::list ops_list(const strata::StepPlan& step, const strata::Resolution& resolution) {
    py::list out;
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const strata::KernelEntry* kernel = resolution.kernels[i];
        py::dict op;
        op["op"] = std::string(strata::op_name(step.ops[i].request.kind));
        op["request"] = strata::describe(step.ops[i].request);
        op["layer"] = step.ops[i].request.layer;
        op["tensor"] = step.ops[i].request.tensor;
        op["gathered"] = step.ops[i].gathered;
        op["kernel"] = kernel == nullptr ? py::object(py::none())
                                         : py::object(py::str(std::string(kernel->id)));
        out.append(op);
    }
    return out;
}

// A model with its registry, threads and executor, members in order of construction.
class LoadedModel {
  public:
    LoadedModel(const std::string& path,
                const strata::ModePlan& plan,
                const std::string& isa,
                const std::vector<std::string>& without_kernels)
        : model_(strata::Model::open(path)),
          registry_(make_registry(isa, without_kernels)),
          plan_(validated(model_, plan)),
          pool_(plan.threads),
          runtime_(model_, plan, registry_, pool_, [this](auto phase, auto done, auto total) {
              progress_.emplace_back(std::string(phase), done, total);
          }) {}

    // Logits of every position of one sequence from position 0: [T, vocab]. `chunk` rows a step.
    py::array_t<float> logits(const Array<int32_t>& tokens, uint32_t chunk) {
        const auto count = static_cast<uint32_t>(tokens.size());
        check_tokens(tokens);
        if (count == 0 || count > plan_.max_context || count > plan_.kv_tokens) {
            fail("tokens",
                 std::to_string(count) + " tokens; allowed are 1 to " +
                     std::to_string(std::min<uint64_t>(plan_.max_context, plan_.kv_tokens)));
        }
        const uint32_t chunk_max = std::min(runtime_.rows_max(), runtime_.gather_max());
        chunk = chunk == 0 ? std::min(plan_.prefill, chunk_max) : chunk;
        if (chunk > chunk_max) {
            fail("chunk",
                 "chunk is " + std::to_string(chunk) + "; allowed are 1 to " +
                     std::to_string(chunk_max));
        }
        std::vector<uint32_t> table(plan_.pages_per_sequence());
        for (uint32_t page = 0; page < table.size(); ++page) {
            table[page] = page;
        }
        const uint32_t vocab = runtime_.vocab();
        py::array_t<float> out({static_cast<py::ssize_t>(count), static_cast<py::ssize_t>(vocab)});
        float* to = out.mutable_data();
        py::gil_scoped_release release;
        for (uint32_t first = 0; first < count; first += chunk) {
            const uint32_t rows = std::min(chunk, count - first);
            std::vector<uint32_t> positions(rows), sequences(rows, 0), gather(rows);
            for (uint32_t i = 0; i < rows; ++i) {
                positions[i] = first + i;
                gather[i] = i;
            }
            strata::RowView view;
            view.rows = rows;
            view.tokens = tokens.data() + first;
            view.positions = positions.data();
            view.sequences = sequences.data();
            view.page_tables = table.data();
            view.page_table_stride = static_cast<uint32_t>(table.size());
            view.gather = gather.data();
            view.gather_rows = rows;
            runtime_.step(view);
            for (uint32_t i = 0; i < rows; ++i) {
                std::copy_n(runtime_.logits(i), vocab, to + uint64_t{first + i} * vocab);
            }
        }
        return out;
    }

    // One step of rows of any sequences: logits [gather, vocab].
    py::array_t<float> step(const Array<int32_t>& tokens,
                            const Array<uint32_t>& positions,
                            const Array<uint32_t>& sequences,
                            const Array<uint32_t>& page_tables,
                            const Array<uint32_t>& gather) {
        check_tokens(tokens);
        check_step(tokens, positions, sequences, page_tables, gather);
        strata::RowView view;
        view.rows = static_cast<uint32_t>(tokens.size());
        view.tokens = tokens.data();
        view.positions = positions.data();
        view.sequences = sequences.data();
        view.page_tables = page_tables.data();
        view.page_table_stride = static_cast<uint32_t>(page_tables.shape(1));
        view.gather = gather.data();
        view.gather_rows = static_cast<uint32_t>(gather.size());
        const uint32_t vocab = runtime_.vocab();
        py::array_t<float> out({gather.size(), static_cast<py::ssize_t>(vocab)});
        float* to = out.mutable_data();
        py::gil_scoped_release release;
        runtime_.step(view);
        for (uint32_t i = 0; i < view.gather_rows; ++i) {
            std::copy_n(runtime_.logits(i), vocab, to + uint64_t{i} * vocab);
        }
        return out;
    }

    py::list ops() const { return ops_list(runtime_.step_plan(), runtime_.resolution()); }
    py::dict plan() const { return plan_dict(plan_); }
    py::dict memory() const { return memory_dict(runtime_.memory().parts()); }
    const strata::CpuRuntime& runtime() const { return runtime_; }
    const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& progress() const {
        return progress_;
    }

  private:
    // A pool is made before the runtime can check the plan.
    static strata::ModePlan validated(const strata::Model& model, const strata::ModePlan& plan) {
        strata::validate_plan(model, plan);
        return plan;
    }

    [[noreturn]] static void fail(const char* what, const std::string& text) {
        throw Error(ErrorKind::InvalidRequest, std::string("binding.") + what, text);
    }

    void check_tokens(const Array<int32_t>& tokens) const {
        const auto vocab = static_cast<int32_t>(runtime_.vocab());
        for (py::ssize_t i = 0; i < tokens.size(); ++i) {
            const int32_t token = tokens.data()[i];
            if (token < 0 || token >= vocab) {
                fail("tokens",
                     "token " + std::to_string(token) + " at index " + std::to_string(i) +
                         "; allowed are 0 to " + std::to_string(vocab - 1));
            }
        }
    }

    void check_step(const Array<int32_t>& tokens,
                    const Array<uint32_t>& positions,
                    const Array<uint32_t>& sequences,
                    const Array<uint32_t>& page_tables,
                    const Array<uint32_t>& gather) const {
        const py::ssize_t rows = tokens.size();
        if (rows < 1 || rows > runtime_.rows_max() || positions.size() != rows ||
            sequences.size() != rows || page_tables.ndim() != 2 ||
            gather.size() > runtime_.gather_max()) {
            fail("step",
                 "arrays do not make a step of at most " + std::to_string(runtime_.rows_max()) +
                     " rows and " + std::to_string(runtime_.gather_max()) + " gathered rows");
        }
        for (py::ssize_t i = 0; i < rows; ++i) {
            const uint32_t page_index = positions.data()[i] / strata::kPageTokens;
            if (sequences.data()[i] >= page_tables.shape(0) || page_index >= page_tables.shape(1) ||
                page_tables.at(sequences.data()[i], page_index) >= plan_.pages()) {
                fail("step", "row " + std::to_string(i) + " lies outside the page tables");
            }
        }
        for (py::ssize_t i = 0; i < gather.size(); ++i) {
            if (gather.data()[i] >= rows) {
                fail("step",
                     "gathered row " + std::to_string(gather.data()[i]) + " of " +
                         std::to_string(rows) + " rows");
            }
        }
    }

    strata::Model model_;
    strata::Registry registry_;
    strata::ModePlan plan_;
    std::vector<std::tuple<std::string, uint64_t, uint64_t>> progress_;
    strata::ThreadPool pool_;
    strata::CpuRuntime runtime_;
};

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
    const strata::ResolvedPlan resolved = strata::resolve_mode(model, plan, registry);
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
                           uint64_t kv_tokens) {
    strata::ModePlan plan;
    plan.batch = batch;
    plan.max_context = max_context;
    plan.kv = strata::parse_kv(kv);
    plan.prefill = prefill;
    plan.activations = strata::parse_activations(activations);
    plan.threads = threads;
    plan.kv_tokens = kv_tokens;
    return plan;
}

}  // namespace

void bind_model(py::module_& m) {
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
             arg("kv_tokens"));
    py::class_<LoadedModel>(m, "LoadedModel")
        .def(py::init<const std::string&,
                      const strata::ModePlan&,
                      const std::string&,
                      const std::vector<std::string>&>(),
             arg("path"),
             arg("plan"),
             py::kw_only(),
             arg("isa") = "auto",
             arg("without_kernels") = std::vector<std::string>())
        .def("logits",
             &LoadedModel::logits,
             arg("tokens"),
             arg("chunk") = 0,
             "Logits of all positions of one sequence from position 0: f32 [T, vocab].")
        .def("step",
             &LoadedModel::step,
             arg("tokens"),
             arg("positions"),
             arg("sequences"),
             arg("page_tables"),
             arg("gather"),
             "One step over rows of any sequences: f32 [gathered rows, vocab].")
        .def_property_readonly("ops", &LoadedModel::ops)
        .def_property_readonly("plan", &LoadedModel::plan)
        .def_property_readonly("memory", &LoadedModel::memory)
        .def_property_readonly("progress", &LoadedModel::progress)
        .def_property_readonly("vocab", [](const LoadedModel& o) { return o.runtime().vocab(); })
        .def_property_readonly("rows_max",
                               [](const LoadedModel& o) { return o.runtime().rows_max(); })
        .def_property_readonly("gather_max",
                               [](const LoadedModel& o) { return o.runtime().gather_max(); })
        .def_property_readonly("steps", [](const LoadedModel& o) { return o.runtime().steps(); })
        .def_property_readonly("op_index",
                               [](const LoadedModel& o) { return o.runtime().op_index(); });
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
    m.attr("PAGE_TOKENS") = strata::kPageTokens;
}
