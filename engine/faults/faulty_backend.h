// A backend whose kernels meet the faults of STRATA_FAULT when they are launched; everything else
// is the backend it wraps. Part of test builds only: the shipped program has none of this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/faults/fault.h"
#include "engine/loop/backend.h"

namespace strata::faults {

class FaultyBackend final : public Backend {
  public:
    // One per process: a kernel is a plain function and finds its faults in a table of the process.
    // Throws Error "config.fault" where a fault names no kernel of the backend.
    FaultyBackend(std::unique_ptr<Backend> inner, std::vector<Fault> faults);

    std::string name() const override { return inner_->name(); }
    std::string device() const override { return inner_->device(); }
    DeviceFacts device_facts() const override { return inner_->device_facts(); }
    const HostFacts& host() const override { return inner_->host(); }
    std::vector<KernelEntry> kernels() const override { return kernels_; }
    Loaded load(const Model& model,
                const ModePlan& plan,
                const Registry& registry,
                const LoadProgress& progress) override {
        return inner_->load(model, plan, registry, progress);
    }

  private:
    std::unique_ptr<Backend> inner_;
    std::vector<Fault> faults_;
    std::vector<KernelEntry> kernels_;
};

}  // namespace strata::faults
