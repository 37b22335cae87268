#include "engine/backend/recurrent_state.h"

#include <algorithm>
#include <cstring>

#include "engine/base/assert.h"

namespace strata {

namespace {

constexpr uint64_t kSlotAlignment = 4096 / sizeof(float);
constexpr uint64_t kCheckpointBytes = uint64_t{1} << 30;
constexpr uint64_t kCheckpointsMin = 2;
constexpr uint64_t kCheckpointsMax = 64;

}  // namespace

uint64_t state_slot_floats(uint64_t state_floats) {
    return align_up(state_floats, kSlotAlignment);
}

uint32_t checkpoints_of(const ModePlan& plan, const StepPlan& step) {
    if (!plan.prefix_cache || step.state_floats == 0) return 0;
    const uint64_t slot_bytes = state_slot_floats(step.state_floats) * sizeof(float);
    return static_cast<uint32_t>(
        std::clamp(kCheckpointBytes / slot_bytes, kCheckpointsMin, kCheckpointsMax));
}

RecurrentState::RecurrentState(uint64_t state_floats,
                               uint32_t sequences,
                               uint32_t checkpoints,
                               uint32_t undo)
    : slot_floats_(state_slot_floats(state_floats)),
      sequences_(sequences),
      checkpoints_(state_floats == 0 ? 0 : checkpoints),
      undo_(undo),
      buffer_(slot_floats_ * (sequences + checkpoints_) * sizeof(float), "recurrent states"),
      progress_(sequences + checkpoints_) {
    runs_.reserve(sequences);
}

StateView RecurrentState::view(uint64_t state_at) const {
    return {reinterpret_cast<float*>(buffer_.data()) + state_at, slot_floats_};
}

bool RecurrentState::can_continue(uint32_t slot, uint32_t position) const {
    if (slot_floats_ == 0 || position == 0) return true;
    const Progress& at = progress_[slot];
    return position >= at.position && position <= at.position + at.logged;
}

void RecurrentState::roll_back(uint32_t slot, uint32_t position) {
    if (slot_floats_ == 0) return;
    STRATA_ASSERT(can_continue(slot, position), "rows to take back are logged");
    Progress& at = progress_[slot];
    at.logged = position > at.position ? position - at.position : 0;
}

void RecurrentState::assume_position(uint32_t slot, uint32_t position) {
    if (slot_floats_ == 0) return;
    progress_[slot].position = position;
    progress_[slot].logged = 0;
}

void RecurrentState::copy(const StateCopy& copy) {
    STRATA_ASSERT(copy.from < progress_.size() && copy.to < progress_.size(), "no such slot");
    std::byte* const data = buffer_.data();
    const uint64_t bytes = slot_floats_ * sizeof(float);
    std::memcpy(data + copy.to * bytes, data + copy.from * bytes, bytes);
    progress_[copy.to] = progress_[copy.from];
}

void RecurrentState::add_run(const RowView& rows, uint32_t first, uint32_t count) {
    const uint32_t slot = rows.sequences[first];
    const uint32_t position = rows.positions[first];
    STRATA_ASSERT(slot < sequences_, "a row belongs to a sequence of the plan");
    STRATA_ASSERT(can_continue(slot, position), "rows begin where the state stands");
    STRATA_ASSERT(runs_.size() < sequences_, "rows of one sequence are neighbours");
    const Progress& at = progress_[slot];
    StateRun run{};
    run.slot = slot;
    run.row = first;
    run.rows = count;
    run.position = position;
    run.replay = position == 0 ? 0 : position - at.position;
    run.commit = count - std::min(count, undo_);
    run.log_read = at.log;
    run.log_write = 1 - at.log;
    runs_.push_back(run);
}

RowView RecurrentState::begin(const RowView& rows) {
    if (slot_floats_ == 0) return rows;
    for (uint32_t i = 0; i < rows.copy_count; ++i) copy(rows.copies[i]);
    runs_.clear();
    uint32_t first = 0;
    for (uint32_t row = 1; row <= rows.rows; ++row) {
        const bool goes_on = row < rows.rows && rows.sequences[row] == rows.sequences[first];
        if (!goes_on) {
            add_run(rows, first, row - first);
            first = row;
        } else {
            STRATA_ASSERT(rows.positions[row] == rows.positions[row - 1] + 1,
                          "rows of a sequence have no gaps");
        }
    }
    RowView out = rows;
    out.runs = runs_.data();
    out.run_count = static_cast<uint32_t>(runs_.size());
    return out;
}

void RecurrentState::end() {
    for (const StateRun& run : runs_) {
        Progress& at = progress_[run.slot];
        at.position = run.position + run.commit;
        at.logged = run.rows - run.commit;
        at.log = run.log_write;
    }
    runs_.clear();
}

}  // namespace strata
