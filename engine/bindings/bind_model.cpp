// Python view of a loaded model: what tests/model and tools/logits.py drive. The same classes as in
// the engine process, without its loop.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/backend/cpu_runtime.h"
#include "engine/bindings/plan_values.h"
#include "engine/model/model.h"

namespace py = pybind11;

namespace {

using strata::Error;
using strata::ErrorKind;
using strata::bindings::make_registry;
using strata::bindings::memory_dict;
using strata::bindings::ops_list;
using strata::bindings::plan_dict;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// A model with its registry, threads and executor, members in order of construction.
class LoadedModel {
  public:
    LoadedModel(const std::string& path,
                const strata::ModePlan& plan,
                const std::string& isa,
                const std::vector<std::string>& without_kernels,
                const std::string& ple)
        : model_(strata::Model::open(path, ple)),
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
        check_states(positions, sequences);
        const strata::RowView view = view_of(tokens, positions, sequences, page_tables, gather);
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

    // Hidden states of the rows of the last step: [rows, width].
    py::array_t<float> hidden(uint32_t rows) {
        strata::DraftSteps& drafts = drafts_of();
        if (rows > runtime_.rows_max()) fail("rows", "more rows than a step has");
        const auto width = static_cast<py::ssize_t>(drafts.width());
        py::array_t<float> out({static_cast<py::ssize_t>(rows), width});
        for (uint32_t row = 0; row < rows; ++row) {
            std::copy_n(drafts.model_hidden(row), width, out.mutable_data(row));
        }
        return out;
    }

    // One step of the drafter: (logits [gather, vocab], hidden states [gather, width]).
    std::pair<py::array_t<float>, py::array_t<float>> draft(const Array<int32_t>& tokens,
                                                            const Array<uint32_t>& positions,
                                                            const Array<uint32_t>& sequences,
                                                            const Array<uint32_t>& page_tables,
                                                            const Array<uint32_t>& gather,
                                                            const Array<float>& hidden) {
        strata::DraftSteps& drafts = drafts_of();
        check_tokens(tokens);
        check_step(tokens, positions, sequences, page_tables, gather);
        const auto width = static_cast<py::ssize_t>(drafts.width());
        if (gather.size() > drafts.gather_max() || hidden.ndim() != 2 ||
            hidden.shape(0) != tokens.size() || hidden.shape(1) != width) {
            fail("draft",
                 "at most " + std::to_string(drafts.gather_max()) +
                     " gathered rows, and a hidden " + "state of " + std::to_string(width) +
                     " elements for each row");
        }
        for (py::ssize_t row = 0; row < tokens.size(); ++row) {
            std::copy_n(hidden.data(row), width, drafts.input(static_cast<uint32_t>(row)));
        }
        const strata::RowView view = view_of(tokens, positions, sequences, page_tables, gather);
        drafts.step(view);
        const uint32_t vocab = runtime_.vocab();
        py::array_t<float> logits({gather.size(), static_cast<py::ssize_t>(vocab)});
        py::array_t<float> recycled({gather.size(), width});
        for (uint32_t i = 0; i < view.gather_rows; ++i) {
            std::copy_n(drafts.logits(i), vocab, logits.mutable_data(i));
            std::copy_n(drafts.hidden(i), width, recycled.mutable_data(i));
        }
        return {logits, recycled};
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

    static strata::RowView view_of(const Array<int32_t>& tokens,
                                   const Array<uint32_t>& positions,
                                   const Array<uint32_t>& sequences,
                                   const Array<uint32_t>& page_tables,
                                   const Array<uint32_t>& gather) {
        strata::RowView view;
        view.rows = static_cast<uint32_t>(tokens.size());
        view.tokens = tokens.data();
        view.positions = positions.data();
        view.sequences = sequences.data();
        view.page_tables = page_tables.data();
        view.page_table_stride = static_cast<uint32_t>(page_tables.shape(1));
        view.gather = gather.data();
        view.gather_rows = static_cast<uint32_t>(gather.size());
        return view;
    }

    strata::DraftSteps& drafts_of() {
        if (runtime_.drafts() == nullptr) fail("draft", "the plan has no drafts");
        return *runtime_.drafts();
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

    // Rows of a model with recurrent layers go on where the states stand; those of a drafter, which
    // has none, may lie anywhere.
    void check_states(const Array<uint32_t>& positions, const Array<uint32_t>& sequences) const {
        if (!runtime_.states().is_recurrent) return;
        for (py::ssize_t i = 0; i < positions.size(); ++i) {
            const uint32_t sequence = sequences.data()[i];
            const uint32_t position = positions.data()[i];
            const bool is_first = i == 0 || sequence != sequences.data()[i - 1];
            if (sequence >= plan_.batch || (is_first ? !runtime_.can_continue(sequence, position)
                                                     : position != positions.data()[i - 1] + 1)) {
                fail("step",
                     "row " + std::to_string(i) + " does not go on where its sequence stands");
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

}  // namespace

void bind_model(py::module_& m) {
    using py::arg;
    py::class_<LoadedModel>(m, "LoadedModel")
        .def(py::init<const std::string&,
                      const strata::ModePlan&,
                      const std::string&,
                      const std::vector<std::string>&,
                      const std::string&>(),
             arg("path"),
             arg("plan"),
             py::kw_only(),
             arg("isa") = "auto",
             arg("without_kernels") = std::vector<std::string>(),
             arg("ple") = "")
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
        .def("hidden",
             &LoadedModel::hidden,
             arg("rows"),
             "Hidden states of the first rows of the last step: f32 [rows, width].")
        .def(
            "draft",
            &LoadedModel::draft,
            arg("tokens"),
            arg("positions"),
            arg("sequences"),
            arg("page_tables"),
            arg("gather"),
            arg("hidden"),
            "One step of the drafter: (logits [gathered, vocab], hidden states [gathered, width]).")
        .def_property_readonly("ops", &LoadedModel::ops)
        .def_property_readonly("plan", &LoadedModel::plan)
        .def_property_readonly("memory", &LoadedModel::memory)
        .def_property_readonly("progress", &LoadedModel::progress)
        .def_property_readonly("vocab", [](const LoadedModel& o) { return o.runtime().vocab(); })
        .def_property_readonly("rows_max",
                               [](const LoadedModel& o) { return o.runtime().rows_max(); })
        .def_property_readonly("gather_max",
                               [](const LoadedModel& o) { return o.runtime().gather_max(); });
}
