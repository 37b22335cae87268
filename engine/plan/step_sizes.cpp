// What a step plan takes, in rows and bytes.
#include <algorithm>

#include "engine/plan/step_plan.h"

namespace strata {

namespace {

constexpr uint64_t kLogitsBytesMax = uint64_t{64} << 20;

}  // namespace

uint64_t StepPlan::activation_bytes() const {
    uint64_t bytes = 0;
    for (SlotId slot = 0; slot < slots.size(); ++slot) {
        bytes += slot == logits ? 0 : slot_bytes(slots[slot] * sizeof(float));
    }
    for (const uint64_t elements : quant_slots) {
        bytes += slot_bytes(elements) + slot_bytes(elements / 32 * sizeof(float)) +
                 slot_bytes(elements / 32 * sizeof(int32_t));
    }
    return bytes;
}

uint64_t StepPlan::logits_bytes() const {
    return slots[logits] * sizeof(float);
}

uint32_t gather_rows_of(const ModePlan& plan, uint32_t vocab) {
    const uint64_t affordable = kLogitsBytesMax / (uint64_t{vocab} * sizeof(float));
    const uint64_t rows = std::min<uint64_t>(plan.rows_max(), affordable);
    return static_cast<uint32_t>(std::max<uint64_t>(rows, plan.verify_rows()));
}

uint32_t draft_sequences_of(const ModePlan& plan) {
    return plan.batch_mtp ? plan.batch : 1;
}

uint64_t waiting_hidden_bytes(const ModePlan& plan, uint32_t width) {
    return uint64_t{plan.batch} * kPageTokens * width * sizeof(float);
}

uint64_t page_hidden_bytes(const ModePlan& plan, uint32_t width) {
    return uint64_t{plan.pages()} * width * sizeof(float);
}

bool uses_int8(const StepPlan& plan) {
    return std::any_of(
        plan.ops.begin(), plan.ops.end(), [](const PlannedOp& op) { return op.quant != kNoSlot; });
}

}  // namespace strata
