// A loaded model that runs steps: what the engine loop drives. One implementation per backend;
// tests drive the loop with a scripted one. Runtime, its observer and Backend are the only virtual
// interfaces.
#pragma once

#include <cstdint>

#include "engine/backend/kernel.h"

namespace strata {

// Is told what the compute thread is about to do, on that thread and within the step: no
// allocation, no lock, no system call, no exception.
class StepObserver {
  public:
    virtual ~StepObserver() = default;

    virtual void on_step(const RowView& rows) = 0;
    // Before the launch of operation `index` of the step plan.
    virtual void on_op(uint32_t index, const KernelEntry& kernel, const OpRequest& request) = 0;
    virtual void on_step_end() = 0;

    static StepObserver& none();  // does nothing
};

class Runtime {
  public:
    virtual ~Runtime() = default;

    // Who is told from the next step on; outlives the runtime or is replaced.
    virtual void observe(StepObserver& observer) { observer_ = &observer; }

    // Appends K and V of every row and computes logits of the gather rows. Rows of one sequence
    // come in ascending position; a row attends to the positions of its sequence up to its own,
    // which must have been appended by this or earlier steps. At most rows_max rows.
    // No allocation. Throws Error for faults of the device.
    virtual void step(const RowView& rows) = 0;

    // Logits of gather row `index` of the last step: [vocab] f32, valid until the next step.
    // The caller may change them in place (penalties, bias).
    virtual float* logits(uint32_t index) = 0;

    virtual uint32_t vocab() const = 0;
    virtual uint32_t rows_max() const = 0;    // rows a step may carry
    virtual uint32_t gather_max() const = 0;  // gather rows a step may carry

  protected:
    StepObserver* observer_ = &StepObserver::none();
};

}  // namespace strata
