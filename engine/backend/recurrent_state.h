// Owns the recurrent states of sequences and their checkpoints, and how far each has come. Before a
// step it splits the rows into runs, one a sequence, and says what each state has to take in;
// after the step it moves on. A sequence is its slot; a state whose next row is at position 0
// begins as zeros, so nothing of an earlier sequence can be left in it.
//
// With `undo` rows, the last `undo` rows of every run are logged, not taken in, and the next run
// may begin behind any of them (state_run.h): rows are taken back by going on before them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/backend/page_buffer.h"
#include "engine/plan/mode.h"
#include "engine/plan/step_plan.h"

namespace strata {

// Floats from one slot to the next, for operations that need `state_floats` together.
uint64_t state_slot_floats(uint64_t state_floats);

// States that a plan keeps at prefixes for the prefix cache; 0 without one or without recurrent
// layers. As many as take a GiB together, at least two, at most 64.
uint32_t checkpoints_of(const ModePlan& plan, const StepPlan& step);

class RecurrentState {
  public:
    // Slots for `sequences` and, behind them, `checkpoints`; with `state_floats` 0 nothing at all.
    // Throws Error{OutOfMemory, "mem.allocate"}.
    RecurrentState(uint64_t state_floats, uint32_t sequences, uint32_t checkpoints, uint32_t undo);

    // The part of every slot that begins at float `state_at`.
    StateView view(uint64_t state_at) const;

    // Whether rows of the slot may begin at `position`: at 0, where its state stands, or behind one
    // of the logged rows.
    bool can_continue(uint32_t slot, uint32_t position) const;

    // Takes back the rows of the slot from `position` on, which can_continue() there.
    void roll_back(uint32_t slot, uint32_t position);
    // What the slot holds counts as its state at `position`.
    void assume_position(uint32_t slot, uint32_t position);

    // Makes the copies that `rows` asks for and adds the runs. The answer is valid until end().
    // Without states it is `rows`.
    RowView begin(const RowView& rows);
    // The rows were computed. Without it (the step failed) the states of its sequences are
    // undefined.
    void end();

    uint32_t checkpoints() const { return checkpoints_; }
    const PageBuffer& buffer() const { return buffer_; }

  private:
    struct Progress {
        uint32_t position = 0;  // rows that the state has taken in
        uint32_t logged = 0;    // rows behind them in the log
        uint32_t log = 0;       // which of the two logs
    };

    void copy(const StateCopy& copy);
    void add_run(const RowView& rows, uint32_t first, uint32_t count);

    uint64_t slot_floats_;
    uint32_t sequences_;
    uint32_t checkpoints_;
    uint32_t undo_;
    PageBuffer buffer_;
    std::vector<Progress> progress_;  // [slots]
    std::vector<StateRun> runs_;      // of the step under way; capacity = sequences
};

}  // namespace strata
