#include "engine/backend/weight_plan.h"

#include <algorithm>

#include "engine/backend/page_buffer.h"
#include "engine/base/assert.h"

namespace strata {

namespace {

constexpr uint64_t kPackedAlignment = 64;
constexpr uint64_t kVectorAlignment = kPackedAlignment / sizeof(float);

// Equal packing ids share one copy, whichever kernels named them.
uint32_t find_or_add_packed(WeightPlan& plan,
                            const TensorFiles& files,
                            const TensorSlice& slice,
                            const Packing& packing) {
    for (size_t i = 0; i < plan.packed.size(); ++i) {
        if (plan.packed[i].slice == slice && plan.packed[i].packing->id == packing.id) {
            return static_cast<uint32_t>(i);
        }
    }
    const gguf::TensorInfo& tensor = files.tensor(slice);
    PackedWeight item;
    item.slice = slice;
    item.packing = &packing;
    item.offset = align_up(plan.packed_bytes, kPackedAlignment);
    item.expert_bytes =
        packing.bytes(tensor.type, slice.rows, static_cast<uint32_t>(tensor.shape[0]));
    item.bytes = slice.experts * item.expert_bytes;
    plan.packed_bytes = item.offset + item.bytes;
    plan.packed_source_bytes += files.rows_bytes(slice);
    plan.packed.push_back(item);
    return static_cast<uint32_t>(plan.packed.size() - 1);
}

uint32_t find_or_add_vector(WeightPlan& plan, const TensorSlice& slice) {
    for (size_t i = 0; i < plan.vectors.size(); ++i) {
        if (plan.vectors[i].slice == slice) {
            return static_cast<uint32_t>(i);
        }
    }
    plan.vectors.push_back({slice, plan.vector_elements});
    plan.vector_elements = align_up(plan.vector_elements + slice.rows, kVectorAlignment);
    return static_cast<uint32_t>(plan.vectors.size() - 1);
}

OpWeights add_step(WeightPlan& plan,
                   const TensorFiles& files,
                   const StepPlan& step,
                   const Resolution& resolution) {
    OpWeights weights;
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const PlannedOp& op = step.ops[i];
        uint32_t packed = kNoTensor;
        if (op.weight.is_present()) {
            const Packing* packing = resolution.kernels[i]->packing;
            if (packing != nullptr) {
                packed = find_or_add_packed(plan, files, op.weight, *packing);
            } else {
                add_unpacked(plan, files, op);
            }
        }
        weights.packed.push_back(packed);
        const auto vector = [&](const TensorSlice& slice) {
            return slice.is_present() ? find_or_add_vector(plan, slice) : kNoTensor;
        };
        weights.vector.push_back(vector(op.vector));
        weights.vector2.push_back(vector(op.vector2));
    }
    return weights;
}

}  // namespace

void add_unpacked(WeightPlan& plan, const TensorFiles& files, const PlannedOp& op) {
    if (!op.weight.is_present()) return;
    const uint64_t bytes = files.tensor(op.weight).bytes;
    if (reads_on_demand(op.request.kind)) {
        const auto known = std::find(plan.on_demand.begin(), plan.on_demand.end(), op.weight);
        if (known != plan.on_demand.end()) return;
        plan.on_demand.push_back(op.weight);
        plan.on_demand_bytes += bytes;
        return;
    }
    auto is_mapped = plan.is_mapped[op.weight.file][op.weight.tensor];
    plan.mapped_bytes += is_mapped ? 0 : bytes;
    is_mapped = true;
}

WeightPlan plan_weights(const Model& model, const Drafter* drafter, const ResolvedPlan& resolved) {
    STRATA_ASSERT(resolved.is_complete(), "weights are planned for a plan that can run");
    const TensorFiles files = resolved.draft ? drafter->files() : model.files();
    WeightPlan plan;
    for (uint32_t file = 0; file < kFileCount; ++file) {
        if (files.has_file(file)) {
            plan.is_mapped[file].assign(files.file(file).tensors().size(), false);
        }
    }
    plan.step = add_step(plan, files, resolved.step, resolved.resolution);
    if (resolved.draft) {
        const WeightBytes models{plan.packed_bytes, plan.vector_elements, plan.mapped_bytes};
        plan.draft = add_step(plan, files, *resolved.draft, resolved.draft_resolution);
        plan.drafters = {plan.packed_bytes - models.packed,
                         plan.vector_elements - models.elements,
                         plan.mapped_bytes - models.mapped};
    }
    return plan;
}

}  // namespace strata
