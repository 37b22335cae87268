#include "engine/loop/beacon_observer.h"

#include <string_view>
#include <vector>

#include "engine/plan/type_words.h"

namespace strata {

BeaconObserver::BeaconObserver(Beacon& beacon, const Registry& registry)
    : beacon_(beacon), first_(registry.entries().data()) {
    std::vector<std::string_view> ids;
    ids.reserve(registry.entries().size());
    for (const KernelEntry& entry : registry.entries()) ids.emplace_back(entry.id);
    beacon_.set_kernels(ids);
}

void BeaconObserver::on_step(const RowView& rows) {
    // Rows of one sequence are neighbours.
    uint32_t sequences = 1;
    for (uint32_t i = 1; i < rows.rows; ++i) {
        sequences += rows.sequences[i] != rows.sequences[i - 1] ? 1 : 0;
    }
    beacon_.set_rows(rows.rows, sequences);
    layer_ = kNoLayer;
    is_long_ = rows.rows >= kLongStepRows;
}

void BeaconObserver::on_op(uint32_t index, const KernelEntry& kernel, const OpRequest& request) {
    const auto number = static_cast<uint32_t>(&kernel - first_);
    beacon_.launch(Beacon::position(number, index, request.layer));
    if (is_long_ || request.layer != layer_) {
        layer_ = request.layer;
        beacon_.move();
    }
}

std::string summary(const ModePlan& plan) {
    const std::string_view kv = kv_word(plan.kv);
    const char* activations = plan.activations == DType::I8Block ? "int8" : "f32";
    return "batch " + std::to_string(plan.batch) + ", prefill " + std::to_string(plan.prefill) +
           ", context " + std::to_string(plan.max_context) + ", kv " + std::string(kv) +
           ", activations " + activations + ", spec " + std::to_string(plan.spec) + ", threads " +
           std::to_string(plan.threads);
}

}  // namespace strata
