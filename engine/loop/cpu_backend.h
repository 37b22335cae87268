// The CPU as a backend: kernels of this processor, host memory, a pool of compute threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/base/cpu_features.h"
#include "engine/base/thread_pool.h"
#include "engine/loop/backend.h"

namespace strata {

class CpuBackend final : public Backend {
  public:
    // `isa`: the highest instruction set to use, "auto" for what the processor has. Throws Error
    // "config.isa".
    explicit CpuBackend(std::string_view isa);

    std::string name() const override { return "cpu"; }
    std::string device() const override { return features_.processor; }
    const HostFacts& host() const override { return host_; }
    DeviceFacts device_facts() const override;
    std::vector<KernelEntry> kernels() const override;
    Loaded load(const Model& model,
                const ModePlan& plan,
                const Registry& registry,
                const LoadProgress& progress) override;

  private:
    CpuFeatures features_;
    HostFacts host_;
    std::unique_ptr<ThreadPool> pool_;
};

}  // namespace strata
