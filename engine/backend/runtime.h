// A loaded model that runs steps: what the engine loop drives. One implementation per backend;
// tests drive the loop with a scripted one. Runtime, its observer, DraftSteps and Backend are the
// only virtual interfaces.
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

// The drafter's side of a runtime whose plan has drafts. Rows, pages and positions are those of the
// model's sequences; the draft layer has keys and values of its own in the same pages.
class DraftSteps {
  public:
    virtual ~DraftSteps() = default;

    virtual uint32_t width() const = 0;  // elements of a hidden state
    virtual uint32_t rows_max() const = 0;
    virtual uint32_t gather_max() const = 0;

    // Hidden state of row `row` of the model's last step: [width], valid until its next.
    virtual const float* model_hidden(uint32_t row) const = 0;
    // Where the hidden state that row `row` of the next step takes is written: [width].
    virtual float* input(uint32_t row) = 0;

    // Row p takes token x_p and the hidden state of position p - 1 (zeros for p = 0), appends to
    // the draft layer's keys and values at p and, where gathered, predicts x_(p+1). Rows of a
    // sequence ascend and follow what is in its pages. No allocation. Throws Error for faults of
    // the device.
    virtual void step(const RowView& rows) = 0;
    // Of gather row `index` of the last step, valid until the next: [vocab], and the hidden state
    // [width] that stands for the model's in a draft step behind it.
    virtual float* logits(uint32_t index) = 0;
    virtual const float* hidden(uint32_t index) const = 0;
};

// Recurrent states that a runtime keeps: one slot for each sequence that may share a step, then
// those of checkpoints, which only StateCopy reads and writes.
struct StateFacts {
    bool is_recurrent = false;  // sequences have such states
    uint32_t checkpoints = 0;
};

class Runtime {
  public:
    virtual ~Runtime() = default;

    // Null where the plan has no drafts.
    virtual DraftSteps* drafts() { return nullptr; }

    // The rows of the last step from `position` on of `sequence` (index into its page tables) were
    // drafts that are not accepted: nothing of them may last. Keys and values need no work, they
    // are written again before a row attends to them; states that a step changes in place do.
    virtual void roll_back(uint32_t /*sequence*/, uint32_t /*position*/) {}

    // The next row of `sequence` will be at `position`, on whatever its recurrent state holds: for
    // probes, which need steps at any position without those before it.
    virtual void assume_position(uint32_t /*sequence*/, uint32_t /*position*/) {}

    // Who is told from the next step on; outlives the runtime or is replaced.
    virtual void observe(StepObserver& observer) { observer_ = &observer; }

    // Appends K and V of every row and computes logits of the gather rows. Rows of one sequence
    // come in ascending position; a row attends to the positions of its sequence up to its own,
    // which must have been appended by this or earlier steps. At most rows_max rows. Where states()
    // is recurrent, rows of one sequence are neighbours without gaps in position, and begin at 0 or
    // where the sequence's state stands: behind its last row, or behind one of the last rows that
    // the plan lets be taken back.
    // No allocation. Throws Error for faults of the device.
    virtual void step(const RowView& rows) = 0;

    // Logits of gather row `index` of the last step: [vocab] f32, valid until the next step.
    // The caller may change them in place (penalties, bias).
    virtual float* logits(uint32_t index) = 0;

    virtual uint32_t vocab() const = 0;
    virtual uint32_t rows_max() const = 0;    // rows a step may carry
    virtual uint32_t gather_max() const = 0;  // gather rows a step may carry
    virtual StateFacts states() const { return {}; }

  protected:
    StepObserver* observer_ = &StepObserver::none();
};

}  // namespace strata
