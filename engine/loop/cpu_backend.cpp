#include "engine/loop/cpu_backend.h"

#include "engine/backend/cpu_runtime.h"
#include "engine/cpu/kernels.h"

namespace strata {

CpuBackend::CpuBackend(std::string_view isa)
    : features_(limit_isa(detect_cpu(), isa)), host_(read_host_facts()) {
    host_.cpu = features_.processor;
    host_.isa = best_isa(features_);
}

std::vector<KernelEntry> CpuBackend::kernels() const {
    return cpu_kernels(features_);
}

DeviceFacts CpuBackend::device_facts() const {
    return {device(), name(), host_.memory_total_bytes, host_.memory_available_bytes, false};
}

Loaded CpuBackend::load(const Model& model,
                        const ModePlan& plan,
                        const Registry& registry,
                        const LoadProgress& progress) {
    validate_plan(model, plan);  // before threads are started for it
    pool_ = std::make_unique<ThreadPool>(plan.threads);
    auto runtime = std::make_unique<CpuRuntime>(model, plan, registry, *pool_, progress);
    std::vector<MemoryPart> memory = runtime->memory().parts();
    std::optional<Reason> unlocked = runtime->lock_failure();
    return {std::move(runtime), std::move(memory), std::move(unlocked)};
}

}  // namespace strata
