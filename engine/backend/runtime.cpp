#include "engine/backend/runtime.h"

namespace strata {

namespace {

class NoObserver final : public StepObserver {
  public:
    void on_step(const RowView&) override {}
    void on_op(uint32_t, const KernelEntry&, const OpRequest&) override {}
    void on_step_end() override {}
};

}  // namespace

StepObserver& StepObserver::none() {
    static NoObserver observer;
    return observer;
}

}  // namespace strata
