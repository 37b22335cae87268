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
                            const Model& model,
                            const TensorSlice& slice,
                            const Packing& packing) {
    for (size_t i = 0; i < plan.packed.size(); ++i) {
        if (plan.packed[i].slice == slice && plan.packed[i].packing->id == packing.id) {
            return static_cast<uint32_t>(i);
        }
    }
    const gguf::TensorInfo& tensor = model.tensor(slice);
    PackedWeight item;
    item.slice = slice;
    item.packing = &packing;
    item.offset = align_up(plan.packed_bytes, kPackedAlignment);
    item.bytes = packing.bytes(tensor.type, slice.rows, static_cast<uint32_t>(tensor.shape[0]));
    plan.packed_bytes = item.offset + item.bytes;
    plan.packed_source_bytes += model.bytes(slice).size();
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

}  // namespace

WeightPlan plan_weights(const Model& model, const StepPlan& step, const Resolution& resolution) {
    STRATA_ASSERT(resolution.is_complete(), "weights are planned for a plan that can run");
    WeightPlan plan;
    plan.is_mapped.assign(model.file().tensors().size(), false);
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const PlannedOp& op = step.ops[i];
        uint32_t packed = kNoTensor;
        if (op.weight.is_present()) {
            const Packing* packing = resolution.kernels[i]->packing;
            if (packing != nullptr) {
                packed = find_or_add_packed(plan, model, op.weight, *packing);
            } else {
                plan.is_mapped[op.weight.tensor] = true;
            }
        }
        plan.packed_of_op.push_back(packed);
        plan.vector_of_op.push_back(op.vector.is_present() ? find_or_add_vector(plan, op.vector)
                                                           : kNoTensor);
    }
    for (size_t i = 0; i < plan.is_mapped.size(); ++i) {
        plan.mapped_bytes += plan.is_mapped[i] ? model.file().tensors()[i].bytes : 0;
    }
    return plan;
}

}  // namespace strata
