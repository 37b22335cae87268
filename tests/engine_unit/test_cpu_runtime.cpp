// The executor keeps its promise of the step path: no allocation, whatever the rows. Every
// operator new of the program is counted.
#include <filesystem>
#include <string>
#include <vector>

#include "engine/backend/cpu_runtime.h"
#include "engine/base/cpu_features.h"
#include "engine/cpu/kernels.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/count_allocations.h"

namespace strata::testing {

namespace {

std::string tiny_model(const char* name) {
    const std::filesystem::path here(__FILE__);
    return (here.parent_path().parent_path() / "data" / "oracle" / name).string();
}

// Rows of two sequences: `rows` - 1 of the first, one of the second; all logits wanted.
struct Rows {
    explicit Rows(uint32_t rows, uint32_t gather_rows)
        : tokens(rows, 7), positions(rows), sequences(rows, 0), tables(8), gather(gather_rows) {
        for (uint32_t i = 0; i < rows; ++i) positions[i] = i;
        for (uint32_t i = 0; i < tables.size(); ++i) tables[i] = i;
        for (uint32_t i = 0; i < gather_rows; ++i) gather[i] = i;
        if (rows > 1) {
            sequences.back() = 1;
            positions.back() = 0;
        }
    }

    RowView view() const {
        RowView view;
        view.rows = static_cast<uint32_t>(tokens.size());
        view.tokens = tokens.data();
        view.positions = positions.data();
        view.sequences = sequences.data();
        view.page_tables = tables.data();
        view.page_table_stride = static_cast<uint32_t>(tables.size() / 2);
        view.gather = gather.data();
        view.gather_rows = static_cast<uint32_t>(gather.size());
        return view;
    }

    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions, sequences, tables, gather;
};

void check_model(const char* name, DType kv, uint32_t threads) {
    const Model model = Model::open(tiny_model(name));
    const Registry registry(cpu_kernels(detect_cpu()));
    ModePlan plan;
    plan.batch = 2;
    plan.prefill = 30;
    plan.max_context = 128;
    plan.kv = kv;
    plan.threads = threads;
    plan.kv_tokens = 256;
    ThreadPool pool(plan.threads);
    CpuRuntime runtime(model, plan, registry, pool, [](auto, auto, auto) {});
    const Rows prefill(32, 1);
    const Rows decode(2, 2);
    const Rows silent(16, 0);
    const uint64_t before = allocations.load();
    for (const Rows* rows : {&prefill, &decode, &silent, &decode}) runtime.step(rows->view());
    const uint64_t during = allocations.load() - before;
    CHECK(during == 0, name, during);
    CHECK(runtime.rows_max() == 32 && runtime.gather_max() == 32);
}

}  // namespace

TEST(counter_counts) {
    const uint64_t before = allocations.load();
    const std::vector<int> values(1000);
    CHECK(allocations.load() == before + 1);
}

TEST(steps_do_not_allocate) {
    for (const char* name : {"tiny-llama.gguf", "tiny-qwen3.gguf", "tiny-qwen4exp.gguf"}) {
        for (const DType kv : {DType::F16, DType::F32}) {
            check_model(name, kv, 1);
            check_model(name, kv, 2);
        }
    }
}

}  // namespace strata::testing

CHECK_MAIN
