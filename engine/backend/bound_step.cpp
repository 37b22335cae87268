#include "engine/backend/bound_step.h"

#include <algorithm>
#include <cmath>

#include "engine/base/assert.h"
#include "engine/plan/state_layout.h"

namespace strata {

namespace {

constexpr uint32_t kChunksPerThread = 4;  // room to even out threads that were interrupted

struct LaunchContext {
    const KernelEntry* kernel;
    const OpCall* call;
    std::byte* scratch;
    uint64_t scratch_thread_bytes;
};

void run_items(void* context, uint32_t begin, uint32_t end, uint32_t thread) {
    const LaunchContext& launch = *static_cast<const LaunchContext*>(context);
    OpCall call = *launch.call;
    call.scratch = launch.scratch + thread * launch.scratch_thread_bytes;
    launch.kernel->run(call, {begin, end});
}

}  // namespace

BoundStep::BoundStep(const StepBinding& binding)
    : plan_(binding.plan),
      scratch_(binding.scratch),
      scratch_thread_bytes_(binding.scratch_thread_bytes),
      activations_(binding.plan.activation_bytes(), "activations"),
      logits_(binding.plan.logits_bytes(), "logits") {
    layout_slots();
    for (uint32_t i = 0; i < plan_.ops.size(); ++i) ops_.push_back(bind(binding, i));
}

void BoundStep::layout_slots() {
    std::byte* next = activations_.data();
    const auto take = [&](uint64_t bytes) {
        std::byte* begin = next;
        next += slot_bytes(bytes);
        return begin;
    };
    for (SlotId slot = 0; slot < plan_.slots.size(); ++slot) {
        std::byte* memory =
            slot == plan_.logits ? logits_.data() : take(plan_.slots[slot] * sizeof(float));
        slots_.push_back(reinterpret_cast<float*>(memory));
    }
    for (const uint64_t elements : plan_.quant_slots) {
        QuantView view;
        view.values = reinterpret_cast<int8_t*>(take(elements));
        view.scales = reinterpret_cast<float*>(take(elements / 32 * sizeof(float)));
        view.sums = reinterpret_cast<int32_t*>(take(elements / 32 * sizeof(int32_t)));
        quant_slots_.push_back(view);
    }
    STRATA_ASSERT(next <= activations_.data() + activations_.bytes(), "slots fit their buffer");
}

BoundStep::BoundOp BoundStep::bind(const StepBinding& to, uint32_t index) const {
    const PlannedOp& op = plan_.ops[index];
    const auto slot = [&](SlotId id) { return id == kNoSlot ? nullptr : slots_[id]; };
    BoundOp bound;
    bound.kernel = to.resolution.kernels[index];
    STRATA_ASSERT(bound.kernel->run, "tables of programs that run have a launcher in each entry");
    bound.gathered = op.gathered;
    bound.per_row = op.per_row;
    OpCall& call = bound.call;
    call.request = &op.request;
    call.x = slot(op.x);
    call.y = slot(op.y);
    call.out = slot(op.out);
    call.routing = reinterpret_cast<uint32_t*>(slot(op.routing));
    call.masks = call.routing;
    if (op.quant != kNoSlot) {
        call.quant = quant_slots_[op.quant];
    }
    const uint32_t packed = to.op_weights.packed[index];
    call.weight = to.weights.view(op.weight, packed);
    if (op.weight.is_present() && packed == kNoTensor) {
        call.weight = to.copies.redirect(to.files, op.weight, call.weight);
    }
    call.vector = to.weights.vector(to.op_weights.vector[index]);
    call.vector2 = to.weights.vector(to.op_weights.vector2[index]);
    call.rope = to.rope;
    call.eps = to.hparams.eps;
    const uint32_t head_dim = op.request.head_dim;
    call.scale = head_dim == 0 ? 0.0f : 1.0f / std::sqrt(static_cast<float>(head_dim));
    call.ngram = to.hparams.table.words.data();
    if (op.request.kind == OpKind::Route) call.scale = to.hparams.moe.weights_scale;
    if (op.request.kv != DType::None) {
        const auto layer = static_cast<uint32_t>(op.request.layer);
        const uint32_t place = to.hparams.kv_index(layer) - to.hparams.kv_index(to.first_layer);
        std::byte* keys = to.kv + uint64_t{2} * place * to.kv_layer_bytes;
        call.kv = {keys, keys + to.kv_layer_bytes};
    }
    const OpKind kind = op.request.kind;
    if (kind == OpKind::IndexAppend || kind == OpKind::IndexBlocks ||
        kind == OpKind::SelectTokens) {
        const uint32_t place = to.hparams.index.place(static_cast<uint32_t>(op.request.layer));
        std::byte* const keys = to.index.data + place * to.index.layer.total();
        call.index = {keys, keys + to.index.layer.keys};
    }
    if (op_state_floats(op.request) > 0) call.state = to.states->view(op.state_at);
    return bound;
}

void BoundStep::launch(const BoundOp& op,
                       const RowView& rows,
                       uint32_t row_count,
                       ThreadPool& pool) const {
    OpCall call = op.call;
    call.rows = row_count;
    call.row = rows;
    const uint32_t items = op.kernel->items(call);
    LaunchContext context{op.kernel, &call, scratch_, scratch_thread_bytes_};
    pool.run(items, std::max(1u, items / (pool.size() * kChunksPerThread)), run_items, &context);
}

void BoundStep::run(const RowView& rows, ThreadPool& pool, StepObserver& observer) const {
    STRATA_ASSERT(rows.rows >= 1 && rows.rows <= plan_.rows, "rows of a step are within the plan");
    STRATA_ASSERT(rows.gather_rows <= plan_.gather_rows, "gathered rows are within the plan");
    observer.on_step(rows);
    for (uint32_t i = 0; i < ops_.size(); ++i) {
        const BoundOp& op = ops_[i];
        const uint32_t row_count = op.gathered ? rows.gather_rows : rows.rows;
        if (row_count == 0) continue;
        observer.on_op(i, *op.kernel, *op.call.request);
        launch(op, rows, row_count * op.per_row, pool);
    }
    observer.on_step_end();
}

}  // namespace strata
