// Python view of the kernels: the table, the lookup, running one entry on NumPy arrays, decoding of
// block formats, and the compute threads. What tests/ops and bench/ops drive.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/backend/registry.h"
#include "engine/base/cpu_features.h"
#include "engine/base/thread_pool.h"
#include "engine/bindings/op_values.h"
#include "engine/cpu/kernels.h"
#include "engine/plan/ngram.h"
#include "engine/plan/routing.h"
#include "engine/quant/dequantize.h"

namespace py = pybind11;

namespace {

using namespace strata;
using bindings::feature_names;
using bindings::from_dict;
using bindings::refuse_argument;
using bindings::to_dict;
using bindings::type_by_name;

// A contiguous array argument by name. `elements` 0 accepts any size.
template <class T>
T* array_of(const py::dict& arrays, const char* name, uint64_t elements) {
    if (!arrays.contains(name)) return nullptr;
    const auto array = py::array::ensure(arrays[name]);
    if (!array || !py::isinstance<py::array_t<T, py::array::c_style>>(array))
        refuse_argument(std::string(name) + " must be a contiguous array of the right type");
    if (elements != 0 && static_cast<uint64_t>(array.size()) != elements) {
        refuse_argument(std::string(name) + " has " + std::to_string(array.size()) +
                        " elements, needs " + std::to_string(elements));
    }
    return static_cast<T*>(const_cast<void*>(array.data()));
}

// A buffer with the alignment that kernels are promised.
class AlignedBytes {
  public:
    explicit AlignedBytes(uint64_t bytes) : storage_(bytes + 64) {}
    std::byte* data() {
        void* at = storage_.data();
        size_t space = storage_.size();
        return static_cast<std::byte*>(std::align(64, storage_.size() - 64, at, space));
    }

  private:
    std::vector<std::byte> storage_;
};

// One kernel with its request and its weight in the kernel's layout.
class Op {
  public:
    Op(KernelEntry entry, const OpRequest& request, const py::bytes& weight, uint32_t threads)
        : entry_(std::move(entry)), request_(request), file_(0), packed_(0), pool_(threads) {
        set_weight(weight);
        const uint64_t scratch = entry_.scratch_bytes ? entry_.scratch_bytes(request_) : 0;
        for (uint32_t thread = 0; thread < threads; ++thread) scratch_.emplace_back(scratch);
    }

    // Runs on `arrays` in place; returns the seconds of one of `repeats` runs.
    double run(const py::dict& arrays,
               uint32_t rows,
               double eps,
               double scale,
               uint32_t chunk,
               uint32_t repeats) {
        if (rows == 0 || chunk == 0 || repeats == 0)
            refuse_argument("rows, chunk and repeats start at 1");
        call_ = OpCall{};
        call_.request = &request_;
        call_.rows = rows;
        call_.eps = static_cast<float>(eps);
        call_.scale = static_cast<float>(scale);
        call_.weight = weight_;
        bind_arrays(arrays, rows);
        const uint32_t items = entry_.items(call_);
        py::gil_scoped_release release;
        const auto begin = std::chrono::steady_clock::now();
        for (uint32_t i = 0; i < repeats; ++i) pool_.run(items, chunk, run_chunk, this);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        return elapsed.count() / repeats;
    }

    uint64_t weight_bytes() const { return weight_.bytes; }

  private:
    void set_weight(const py::bytes& bytes) {
        const std::string_view view = bytes;
        if (request_.weight == DType::None) return;
        weight_.type = request_.weight;
        std::tie(weight_.n, weight_.k) = weight_shape();
        weight_.experts = request_.kind == OpKind::ExpertMatmul ? request_.experts : 1;
        weight_.expert_bytes = weight_.n * dtype_bytes(weight_.type, weight_.k);
        const uint64_t needed = weight_.experts * weight_.expert_bytes;
        if (view.size() != needed) {
            refuse_argument("the weight has " + std::to_string(view.size()) + " bytes, needs " +
                            std::to_string(needed));
        }
        file_ = AlignedBytes(needed);
        std::memcpy(file_.data(), view.data(), needed);
        weight_.data = file_.data();
        weight_.bytes = needed;
        if (!entry_.packing) return;
        const Packing& packing = *entry_.packing;
        const uint64_t packed_bytes = packing.bytes(weight_.type, weight_.n, weight_.k);
        packed_ = AlignedBytes(weight_.experts * packed_bytes);
        const uint32_t tiles = (weight_.n + packing.tile_rows - 1) / packing.tile_rows;
        for (uint32_t expert = 0; expert < weight_.experts; ++expert) {
            WeightView from = weight_;
            from.data += expert * weight_.expert_bytes;
            packing.pack(from, packed_.data() + expert * packed_bytes, {0, tiles});
        }
        weight_.data = packed_.data();
        weight_.expert_bytes = packed_bytes;
        weight_.bytes = weight_.experts * packed_bytes;
    }

    // Rows and columns.
    std::pair<uint32_t, uint32_t> weight_shape() const {
        // An embedding's request has the width in n and the vocabulary in k.
        if (request_.kind == OpKind::Embed) return {request_.k, request_.n};
        if (reads_on_demand(request_.kind)) return {request_.k, request_.head_dim};
        return {request_.n, request_.taps > 0 ? request_.taps : request_.k};
    }

    uint64_t out_width() const { return request_.n > 0 ? request_.n : request_.k; }

    uint64_t y_width() const {
        if (request_.kind == OpKind::Concat) return request_.n - request_.k;
        if (request_.kind == OpKind::GatedAdd) return 1;
        if (request_.kind == OpKind::StreamAdd || request_.kind == OpKind::StreamScale)
            return request_.heads;
        return request_.kind == OpKind::DeltaRule ? 2 * request_.heads : request_.k;
    }

    // Rows of the first input where the launch has `rows`.
    uint64_t input_rows(uint32_t rows) const {
        if (request_.kind == OpKind::ExpertSum) return uint64_t{rows} * request_.experts_used;
        const bool is_one_for_all =
            request_.kind == OpKind::ExpertMatmul && (request_.features & kFeatureExpertOrder) == 0;
        return is_one_for_all ? rows / request_.experts_used : rows;
    }

    // The words of a routing; of pairs the launch has experts_used for each row.
    void bind_routing(const py::dict& arrays, uint32_t rows) {
        if (!arrays.contains("routing")) return;
        const bool is_of_pairs = request_.kind == OpKind::ExpertMatmul;
        const uint64_t steps_rows = is_of_pairs ? rows / request_.experts_used : rows;
        call_.routing = array_of<uint32_t>(arrays,
                                           "routing",
                                           steps_rows * routing_row_words(request_.experts_used) +
                                               routing_fixed_words(request_.experts));
    }

    void bind_arrays(const py::dict& arrays, uint32_t rows) {
        const bool is_table = reads_on_demand(request_.kind);
        const uint64_t values = input_rows(rows) * (is_table ? request_.heads : request_.k);
        bind_routing(arrays, rows);
        const bool is_gather = request_.kind == OpKind::GatherRows;
        call_.x = array_of<float>(arrays, "x", is_gather ? 0 : values);
        call_.y = array_of<float>(arrays, "y", rows * y_width());
        call_.out = array_of<float>(arrays, "out", rows * out_width());
        call_.vector = array_of<float>(arrays, "vector", 0);
        call_.vector2 = array_of<float>(arrays, "vector2", 0);
        call_.ngram =
            array_of<uint64_t>(arrays, "ngram", ngram_words(request_.taps, request_.heads));
        bind_states(arrays);
        const bool rotates = request_.kind == OpKind::Rope || request_.kind == OpKind::IndexBlocks;
        const uint32_t magnitudes = rotates ? 1 : 0;
        call_.rope = array_of<float>(arrays, "rope", request_.rope_dims / 2 + magnitudes);
        call_.quant.values = array_of<int8_t>(arrays, "values", values);
        call_.quant.scales = array_of<float>(arrays, "scales", values / 32);
        call_.quant.sums = array_of<int32_t>(arrays, "sums", values / 32);
        call_.row.rows = rows;
        call_.row.tokens = array_of<int32_t>(arrays, "tokens", rows);
        call_.row.positions = array_of<uint32_t>(arrays, "positions", rows);
        call_.row.sequences = array_of<uint32_t>(arrays, "sequences", rows);
        call_.row.page_tables = array_of<uint32_t>(arrays, "page_tables", 0);
        call_.row.gather = array_of<uint32_t>(arrays, "gather", rows);
        call_.row.gather_rows = is_gather ? rows : 0;
        if (arrays.contains("page_tables")) {
            const auto tables = py::array::ensure(arrays["page_tables"]);
            if (tables.ndim() != 2) refuse_argument("page_tables must be [sequences, pages]");
            call_.row.page_table_stride = static_cast<uint32_t>(tables.shape(1));
        }
        call_.masks = array_of<uint32_t>(arrays, "masks", uint64_t{rows} * request_.mask_words);
        call_.index = {pages(arrays, "index_keys"), pages(arrays, "index_blocks")};
        call_.kv.k = pages(arrays, "k_pages");
        call_.kv.v = pages(arrays, "v_pages");
    }

    // States [slots, floats] and runs [runs, fields of StateRun].
    void bind_states(const py::dict& arrays) {
        if (!arrays.contains("runs")) return;
        static_assert(sizeof(StateRun) == 8 * sizeof(uint32_t), "a run is eight numbers");
        const auto states = py::array::ensure(arrays["state"]);
        const auto runs = py::array::ensure(arrays["runs"]);
        if (states.ndim() != 2 || runs.ndim() != 2 || runs.shape(1) != 8)
            refuse_argument("state must be [slots, floats] and runs [runs, 8]");
        call_.state = {array_of<float>(arrays, "state", 0), static_cast<uint64_t>(states.shape(1))};
        call_.row.runs = reinterpret_cast<const StateRun*>(array_of<uint32_t>(arrays, "runs", 0));
        call_.row.run_count = static_cast<uint32_t>(runs.shape(0));
    }

    std::byte* pages(const py::dict& arrays, const char* name) const {
        void* data = request_.kv == DType::F32
                         ? static_cast<void*>(array_of<float>(arrays, name, 0))
                         : static_cast<void*>(array_of<uint16_t>(arrays, name, 0));
        return static_cast<std::byte*>(data);
    }

    static void run_chunk(void* self, uint32_t begin, uint32_t end, uint32_t thread) {
        Op& op = *static_cast<Op*>(self);
        OpCall call = op.call_;
        call.scratch = op.scratch_[thread].data();
        op.entry_.run(call, {begin, end});
    }

    KernelEntry entry_;
    OpRequest request_;
    AlignedBytes file_;
    AlignedBytes packed_;
    WeightView weight_;
    std::vector<AlignedBytes> scratch_;
    OpCall call_;
    ThreadPool pool_;
};

std::vector<KernelMask> parse_masks(const std::vector<std::string>& texts) {
    std::vector<KernelMask> masks;
    for (const std::string& text : texts) masks.push_back(KernelMask::parse(text));
    return masks;
}

class Kernels {
  public:
    Kernels(const std::string& isa, const std::vector<std::string>& masks)
        : registry_(cpu_kernels(limit_isa(detect_cpu(), isa)), parse_masks(masks)) {}

    std::vector<py::dict> entries() const {
        std::vector<py::dict> out;
        for (const KernelEntry& entry : registry_.entries()) {
            py::dict item;
            item["id"] = entry.id;
            item["kind"] = std::string(op_name(entry.kind));
            item["isa"] = std::string(entry.isa);
            item["features"] = feature_names(entry.features);
            item["is_row_invariant"] = entry.determinism == Determinism::RowInvariant;
            item["packing"] = entry.packing ? std::string(entry.packing->id) : std::string();
            item["abs"] = entry.tolerance.abs;
            item["rel"] = entry.tolerance.rel;
            item["nmse"] = entry.tolerance.nmse;
            std::vector<py::dict> requests;
            if (entry.test_requests) {
                for (const OpRequest& request : entry.test_requests())
                    requests.push_back(to_dict(request));
            }
            item["requests"] = requests;
            out.push_back(item);
        }
        return out;
    }

    // (id, []) of the kernel that serves the request, or (None, [(code, text), ...]).
    py::tuple find(const py::dict& fields) const {
        const auto found = registry_.find(from_dict(fields));
        if (const auto* entry = std::get_if<const KernelEntry*>(&found))
            return py::make_tuple((*entry)->id, py::list());
        py::list reasons;
        for (const Reason& reason : std::get<Refusal>(found).reasons)
            reasons.append(py::make_tuple(reason.code, reason.text));
        return py::make_tuple(py::none(), reasons);
    }

    std::unique_ptr<Op> op(const std::string& id,
                           const py::dict& fields,
                           const py::bytes& weight,
                           uint32_t threads) const {
        const OpRequest request = from_dict(fields);
        const KernelEntry& entry = entry_of(id);
        if (threads == 0) refuse_argument("threads start at 1");
        if (entry.kind != request.kind)
            refuse_argument(id + " is no " + std::string(op_name(request.kind)));
        if (const auto why = entry.match(request)) refuse_argument(id + ": " + *why);
        return std::make_unique<Op>(entry, request, weight, threads);
    }

    uint64_t bytes_moved(const std::string& id, const py::dict& fields) const {
        return entry_of(id).bytes_moved(from_dict(fields));
    }

  private:
    const KernelEntry& entry_of(const std::string& id) const {
        for (const KernelEntry& entry : registry_.entries()) {
            if (entry.id == id) return entry;
        }
        refuse_argument("no kernel has the id '" + id + "'");
    }

    Registry registry_;
};

py::array_t<float> dequantize(const std::string& type_name, const py::bytes& bytes) {
    const DType type = type_by_name(type_name);
    if (!can_dequantize(type)) refuse_argument("there is no decoder for type " + type_name);
    const std::string_view view = bytes;
    const DTypeInfo& info = dtype_info(type);
    if (view.size() % info.block_bytes != 0)
        refuse_argument("the bytes are no whole number of blocks of " + std::string(info.name));
    const auto count = static_cast<uint32_t>(view.size() / info.block_bytes * info.block_elements);
    py::array_t<float> out(count);
    dequantize_row(
        type, reinterpret_cast<const std::byte*>(view.data()), out.mutable_data(), count);
    return out;
}

// How often each item of each of `runs` runs was computed, [items]; each must be `runs`.
std::vector<uint32_t> count_items(uint32_t threads, uint32_t items, uint32_t chunk, uint32_t runs) {
    if (threads == 0 || chunk == 0) refuse_argument("threads and chunk start at 1");
    std::vector<uint32_t> counts(items);
    ThreadPool pool(threads);
    py::gil_scoped_release release;
    const auto count = [](void* context, uint32_t begin, uint32_t end, uint32_t) {
        auto* all = static_cast<uint32_t*>(context);
        for (uint32_t item = begin; item < end; ++item) ++all[item];
    };
    for (uint32_t i = 0; i < runs; ++i) pool.run(items, chunk, count, counts.data());
    return counts;
}

py::dict cpu_features(const std::string& isa) {
    const CpuFeatures features = limit_isa(detect_cpu(), isa);
    py::dict out;
    out["avx2"] = features.avx2;
    out["avx512vnni"] = features.avx512vnni;
    out["neon"] = features.neon;
    out["processor"] = features.processor;
    return out;
}

}  // namespace

void bind_ops(py::module_& m);

void bind_ops(py::module_& m) {
    py::class_<Op>(m, "Op", "One kernel with its request and packed weight.")
        .def("run",
             &Op::run,
             py::arg("arrays"),
             py::arg("rows"),
             py::arg("eps") = 1e-5,
             py::arg("scale") = 1.0,
             py::arg("chunk") = 1,
             py::arg("repeats") = 1,
             "Runs on arrays (OpCall's names) in place; returns seconds per run.")
        .def_property_readonly("weight_bytes", &Op::weight_bytes);
    py::class_<Kernels>(m, "Kernels", "The CPU backend's kernel table behind its registry.")
        .def(py::init<const std::string&, const std::vector<std::string>&>(),
             py::arg("isa") = "auto",
             py::arg("masks") = std::vector<std::string>())
        .def("entries", &Kernels::entries)
        .def("find", &Kernels::find, py::arg("request"))
        .def("op",
             &Kernels::op,
             py::arg("id"),
             py::arg("request"),
             py::arg("weight") = py::bytes(),
             py::arg("threads") = 1)
        .def("bytes_moved", &Kernels::bytes_moved, py::arg("id"), py::arg("request"));
    m.def("dequantize", &dequantize, py::arg("type"), py::arg("bytes"));
    m.def("count_items",
          &count_items,
          py::arg("threads"),
          py::arg("items"),
          py::arg("chunk"),
          py::arg("runs"));
    m.def("cpu_features", &cpu_features, py::arg("isa") = "auto");
    m.def("ggml_type_name", &ggml_type_name, py::arg("id"));
}
