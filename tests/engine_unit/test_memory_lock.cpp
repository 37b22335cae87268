// Copies of weights and locked memory: the plan's figures are those of the process afterwards, and
// what cannot be locked is said and leaves nothing locked. Limits are lowered in child processes.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/capability.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/backend/cpu_runtime.h"
#include "engine/backend/host.h"
#include "engine/base/cpu_features.h"
#include "engine/cpu/kernels.h"
#include "tests/engine_unit/check.h"

namespace strata::testing {

namespace {

Model tiny_model() {
    const std::filesystem::path here(__FILE__);
    return Model::open(
        (here.parent_path().parent_path() / "data" / "oracle" / "tiny-qwen3.gguf").string());
}

ModePlan small_plan(bool mmap, bool mlock) {
    ModePlan plan;
    plan.batch = 1;
    plan.prefill = 7;
    plan.max_context = 64;
    plan.kv_tokens = 64;
    plan.mmap = mmap;
    plan.mlock = mlock;
    return plan;
}

struct Loaded {
    explicit Loaded(const ModePlan& plan)
        : model(tiny_model()),
          registry(cpu_kernels(detect_cpu())),
          pool(plan.threads),
          runtime(model, plan, registry, pool, [this](std::string_view phase, auto, auto) {
              if (phases.empty() || phases.back() != phase) phases.emplace_back(phase);
          }) {}

    std::vector<float> logits() {
        const std::vector<int32_t> tokens = {5, 6, 7};
        const std::vector<uint32_t> positions = {0, 1, 2};
        const std::vector<uint32_t> sequences = {0, 0, 0};
        const std::vector<uint32_t> table = {0, 1};
        const std::vector<uint32_t> gather = {2};
        RowView view;
        view.rows = 3;
        view.tokens = tokens.data();
        view.positions = positions.data();
        view.sequences = sequences.data();
        view.page_tables = table.data();
        view.page_table_stride = 2;
        view.gather = gather.data();
        view.gather_rows = 1;
        runtime.step(view);
        const float* row = runtime.logits(0);
        return {row, row + runtime.vocab()};
    }

    std::vector<std::string> phases;
    Model model;
    Registry registry;
    ThreadPool pool;
    CpuRuntime runtime;
};

uint64_t part_bytes(const MemoryPlan& memory, std::string_view name) {
    for (const MemoryPart& part : memory.parts())
        if (part.name == name) return part.bytes;
    return 0;
}

#ifdef __linux__

uint64_t locked_bytes() {
    std::ifstream file("/proc/self/status");
    std::string line;
    while (std::getline(file, line))
        if (line.rfind("VmLck:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
    return 0;
}

// Gives up the capability to lock more than the limit; true also where there was none.
bool drop_ipc_lock() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2] = {};
    if (syscall(SYS_capget, &header, sets) != 0) return false;
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    sets[0].permitted &= ~(1u << CAP_IPC_LOCK);
    sets[0].inheritable &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, sets) == 0;
}

// Runs `check` in a child that may lock `limit` bytes, whoever runs the test.
template <class Check>
void with_limit(rlim_t limit, const Check& check) {
    std::fflush(nullptr);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const rlimit both{limit, limit};
        if (setrlimit(RLIMIT_MEMLOCK, &both) != 0 || !drop_ipc_lock()) _exit(2);
        try {
            check();
        } catch (const std::exception& failure) {
            std::fprintf(stderr, "in the child: %s\n", failure.what());
            _exit(1);
        }
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
}

#endif

}  // namespace

TEST(without_mmap_the_weights_are_copied_and_compute_the_same) {
    Loaded mapped(small_plan(true, false));
    Loaded copied(small_plan(false, false));
    CHECK(mapped.logits() == copied.logits());
    const MemoryPlan& from = mapped.runtime.memory();
    const MemoryPlan& to = copied.runtime.memory();
    CHECK(from.mapped_bytes > 0 && from.copied_bytes == 0);
    CHECK(to.mapped_bytes == 0 && to.copied_bytes >= from.mapped_bytes);
    CHECK(part_bytes(from, "weights.mapped") == from.mapped_bytes);
    CHECK(part_bytes(to, "weights.copied") == to.copied_bytes);
    CHECK(part_bytes(to, "weights.mapped") == 0 && part_bytes(from, "weights.copied") == 0);
    CHECK(to.bytes_without_kv() - from.bytes_without_kv() == to.copied_bytes - from.mapped_bytes);
    const auto has = [](const Loaded& loaded, const char* phase) {
        return std::find(loaded.phases.begin(), loaded.phases.end(), phase) != loaded.phases.end();
    };
    CHECK(has(copied, "copy") && !has(mapped, "copy"));
}

TEST(pages_of_the_file_come_once) {
    const Model model = tiny_model();
    const uint64_t page = page_bytes(1);
    WeightPlan plan;
    plan.is_mapped[kBaseFile].assign(model.file().tensors().size(), true);
    uint64_t end = 0;
    uint64_t bytes = 0;
    for (const FilePages& pages : mapped_file_pages(model.files(), plan, kBaseFile)) {
        CHECK(pages.offset % page == 0 && pages.bytes % page == 0 && pages.bytes > 0);
        CHECK(bytes == 0 || pages.offset > end, "neighbours are one range");
        end = pages.offset + pages.bytes;
        bytes += pages.bytes;
    }
    CHECK(bytes <= page_bytes(model.file().file_bytes()));
    for (const gguf::TensorInfo& tensor : model.file().tensors())
        CHECK(tensor.offset + tensor.bytes <= end);
    plan.is_mapped[kBaseFile].assign(model.file().tensors().size(), false);
    CHECK(mapped_file_pages(model.files(), plan, kBaseFile).empty());
    CHECK(mapped_file_pages(model.files(), plan, kDrafterFile).empty());
    plan.is_mapped[kBaseFile][1] = true;
    CHECK(mapped_file_pages(model.files(), plan, kBaseFile).size() == 1);
}

TEST(a_shortage_has_both_numbers_and_what_helps) {
    CHECK(!memlock_shortage(4096, 4096) && !memlock_shortage(UINT64_MAX, UINT64_MAX));
    const std::optional<Reason> reason = memlock_shortage(8192, 4096);
    CHECK(reason && reason->code == "mem.memlock");
    for (const char* part : {"8192", "4096", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK"})
        CHECK(reason->text.find(part) != std::string::npos, reason->text);
}

#ifdef __linux__

TEST(what_is_locked_is_what_the_plan_said) {
#if defined(__SANITIZE_ADDRESS__)
    const bool does_mlock_lock = false;  // the sanitizer makes it do nothing
#else
    const bool does_mlock_lock = true;
#endif
    if (!does_mlock_lock) return;
    for (const bool mmap : {true, false}) {
        // The plan's own figure as the limit: one page less would not do (below).
        const uint64_t need = Loaded(small_plan(mmap, true)).runtime.memory().lock_bytes();
        with_limit(need, [&] {
            CHECK(memlock_limit_bytes() == need);
            Loaded loaded(small_plan(mmap, true));
            CHECK(!loaded.runtime.lock_failure(), loaded.runtime.lock_failure()->text);
            CHECK(locked_bytes() == need, locked_bytes(), need);
            CHECK(loaded.phases.back() == "lock");
            CHECK(loaded.logits() == Loaded(small_plan(true, false)).logits());
        });
        with_limit(need - page_bytes(1), [&] {
            Loaded loaded(small_plan(mmap, true));
            const std::optional<Reason>& failure = loaded.runtime.lock_failure();
            CHECK(failure && failure->code == "mem.memlock");
            const std::string limit = std::to_string(need - page_bytes(1));
            CHECK(failure->text.find(std::to_string(need)) != std::string::npos, failure->text);
            CHECK(failure->text.find(limit) != std::string::npos, failure->text);
            CHECK(locked_bytes() == 0, locked_bytes());
            CHECK(loaded.logits() == Loaded(small_plan(true, false)).logits());
        });
    }
}
TEST(the_limit_is_read_from_the_process) {
    with_limit(65536, [] { CHECK(memlock_limit_bytes() == 65536); });
    with_limit(0, [] { CHECK(memlock_limit_bytes() == 0); });
}

#endif

}  // namespace strata::testing

CHECK_MAIN
