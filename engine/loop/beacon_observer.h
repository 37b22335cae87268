// Writes into the beacon what the runtime launches. One store for an operation; the clock is read
// where the layer changes, and for every operation of steps long enough to pay for it.
#pragma once

#include <string>

#include "engine/backend/registry.h"
#include "engine/backend/runtime.h"
#include "engine/base/beacon.h"
#include "engine/plan/mode.h"

namespace strata {

class BeaconObserver final : public StepObserver {
  public:
    // Enters the registry's kernels into the beacon. Both outlive the observer.
    BeaconObserver(Beacon& beacon, const Registry& registry);

    void on_step(const RowView& rows) override;
    void on_op(uint32_t index, const KernelEntry& kernel, const OpRequest& request) override;
    void on_step_end() override { beacon_.launch_none(); }

  private:
    static constexpr int32_t kNoLayer = -2;       // differs from every request's
    static constexpr uint32_t kLongStepRows = 8;  // an operation takes far longer than the clock

    Beacon& beacon_;
    const KernelEntry* first_;
    int32_t layer_ = kNoLayer;
    bool is_long_ = false;
};

// "batch 8, prefill 256, context 8192, kv f16, activations int8, spec 0, threads 2".
std::string summary(const ModePlan& plan);

}  // namespace strata
