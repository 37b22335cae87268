#include "engine/backend/cpu_runtime.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "engine/backend/unbuilt.h"
#include "engine/base/assert.h"
#include "engine/model/drafter.h"
#include "engine/plan/limits.h"

namespace strata {

namespace {

constexpr uint32_t kChunksPerThread = 4;  // room to even out threads that were interrupted

ResolvedPlan resolve_or_throw(const Model& model, const ModePlan& plan, const Registry& registry) {
    validate_plan(model, plan);
    const std::optional<Drafter> drafter = Drafter::open(model, plan.mtp);
    ResolvedPlan resolved = resolve_mode(model, drafter ? &*drafter : nullptr, plan, registry);
    std::vector<Reason> missing = resolved.missing();
    const std::vector<Reason> unbuilt = unbuilt_reasons(model.hparams(), plan);
    missing.insert(missing.end(), unbuilt.begin(), unbuilt.end());
    if (!missing.empty()) {
        std::string text;
        for (const Reason& reason : missing) {
            text += (text.empty() ? "" : "\n") + reason.text;
        }
        throw Error(ErrorKind::Unsupported, missing.front().code, text);
    }
    return resolved;
}

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

void validate_plan(const Model& model, const ModePlan& plan) {
    const auto check = [](const char* name, uint64_t value, uint64_t min, uint64_t max) {
        if (value < min || value > max) {
            throw Error(ErrorKind::InvalidRequest,
                        "plan.range",
                        std::string(name) + " is " + std::to_string(value) + "; allowed are " +
                            std::to_string(min) + " to " + std::to_string(max));
        }
    };
    check("batch", plan.batch, 1, kBatchMax);
    check("prefill", plan.prefill, 1, kPrefillMax);
    check("threads", plan.threads, 1, kThreadsMax);
    check("spec", plan.spec, 0, kSpecMax);
    check("max_context", plan.max_context, 1, model.hparams().context);
    check("kv_tokens", plan.kv_tokens, kPageTokens, kKvTokensMax);
    if (plan.kv_tokens % kPageTokens != 0) {
        throw Error(ErrorKind::InvalidRequest,
                    "plan.range",
                    "kv_tokens is " + std::to_string(plan.kv_tokens) +
                        "; it must be a multiple of " + std::to_string(kPageTokens));
    }
    check("spec", plan.spec, 0, kSpecMax);
    if ((plan.spec > 0) != (plan.mtp != "off")) {
        throw Error(ErrorKind::InvalidRequest,
                    "plan.range",
                    "spec is " + std::to_string(plan.spec) + " with mtp " + plan.mtp +
                        "; drafts need both");
    }
}

CpuRuntime::CpuRuntime(const Model& model,
                       const ModePlan& plan,
                       const Registry& registry,
                       ThreadPool& pool,
                       const LoadProgress& progress)
    : model_(model),
      pool_(pool),
      resolved_(resolve_or_throw(model, plan, registry)),
      weight_plan_(plan_weights(model, nullptr, resolved_)),
      memory_(plan_memory(model, nullptr, plan, resolved_, weight_plan_)),
      weights_(model, resolved_.step, weight_plan_, pool, progress),
      copies_(plan.mmap ? WeightCopies() : WeightCopies(model.files(), weight_plan_, progress)),
      vocab_(model.hparams().vocab),
      kv_layer_bytes_(kv_layer_bytes(model.hparams(), plan)),
      activations_(memory_.activation_bytes, "activations"),
      logits_(memory_.logits_bytes, "logits"),
      scratch_(memory_.scratch_bytes, "scratch"),
      kv_(memory_.kv_bytes, "keys and values") {
    STRATA_ASSERT(pool.size() == plan.threads, "the pool has the planned threads");
    progress("allocate", memory_.kv_bytes, memory_.kv_bytes);
    layout_slots();
    for (uint32_t i = 0; i < resolved_.step.ops.size(); ++i) {
        ops_.push_back(bind(i));
    }
    if (plan.mlock) lock_failure_ = lock_memory(lock_ranges(), progress);
}

std::vector<LockRange> CpuRuntime::lock_ranges() const {
    std::vector<LockRange> ranges;
    const auto add = [&](const PageBuffer& buffer) {
        if (buffer.data() != nullptr) ranges.push_back({buffer.data(), page_bytes(buffer.bytes())});
    };
    const TensorFiles files = model_.files();
    for (uint32_t index = 0; index < kFileCount && memory_.mapped_page_bytes > 0; ++index) {
        for (const FilePages& pages : mapped_file_pages(files, weight_plan_, index)) {
            const gguf::TensorInfo& any = files.file(index).tensors().front();
            const std::byte* const first = files.file(index).tensor_bytes(any).data();
            ranges.push_back(
                {const_cast<std::byte*>(first) - any.offset + pages.offset, pages.bytes});
        }
    }
    add(copies_.buffer());
    for (const PageBuffer* buffer : weights_.buffers()) add(*buffer);
    for (const PageBuffer* buffer : {&activations_, &logits_, &scratch_, &kv_}) add(*buffer);
    return ranges;
}

void CpuRuntime::layout_slots() {
    const StepPlan& step = resolved_.step;
    std::byte* next = activations_.data();
    const auto take = [&](uint64_t bytes) {
        std::byte* begin = next;
        next += slot_bytes(bytes);
        return begin;
    };
    for (SlotId slot = 0; slot < step.slots.size(); ++slot) {
        std::byte* memory =
            slot == step.logits ? logits_.data() : take(step.slots[slot] * sizeof(float));
        slots_.push_back(reinterpret_cast<float*>(memory));
    }
    for (const uint64_t elements : step.quant_slots) {
        QuantView view;
        view.values = reinterpret_cast<int8_t*>(take(elements));
        view.scales = reinterpret_cast<float*>(take(elements / 32 * sizeof(float)));
        view.sums = reinterpret_cast<int32_t*>(take(elements / 32 * sizeof(int32_t)));
        quant_slots_.push_back(view);
    }
    STRATA_ASSERT(next <= activations_.data() + activations_.bytes(), "slots fit their buffer");
}

CpuRuntime::BoundOp CpuRuntime::bind(uint32_t index) const {
    const PlannedOp& op = resolved_.step.ops[index];
    const auto slot = [&](SlotId id) { return id == kNoSlot ? nullptr : slots_[id]; };
    BoundOp bound;
    bound.kernel = resolved_.resolution.kernels[index];
    STRATA_ASSERT(bound.kernel->run, "tables of programs that run have a launcher in each entry");
    bound.gathered = op.gathered;
    OpCall& call = bound.call;
    call.request = &op.request;
    call.x = slot(op.x);
    call.y = slot(op.y);
    call.out = slot(op.out);
    if (op.quant != kNoSlot) {
        call.quant = quant_slots_[op.quant];
    }
    call.weight = weights_.view(index);
    if (op.weight.is_present() && weight_plan_.step.packed[index] == kNoTensor) {
        call.weight = copies_.redirect(model_.files(), op.weight, call.weight);
    }
    call.vector = weights_.vector(index);
    call.rope = weights_.rope();
    call.eps = model_.hparams().eps;
    call.scale = 1.0f / std::sqrt(static_cast<float>(model_.hparams().head_dim));
    if (op.request.kv != DType::None) {
        std::byte* layer =
            kv_.data() + 2 * static_cast<uint64_t>(op.request.layer) * kv_layer_bytes_;
        call.kv = {layer, layer + kv_layer_bytes_};
    }
    return bound;
}

void CpuRuntime::launch(const BoundOp& op, const RowView& rows, uint32_t row_count) {
    OpCall call = op.call;
    call.rows = row_count;
    call.row = rows;
    const uint32_t items = op.kernel->items(call);
    LaunchContext context{op.kernel, &call, scratch_.data(), memory_.scratch_thread_bytes};
    pool_.run(items, std::max(1u, items / (pool_.size() * kChunksPerThread)), run_items, &context);
}

void CpuRuntime::step(const RowView& rows) {
    STRATA_ASSERT(rows.rows >= 1 && rows.rows <= rows_max(), "rows of a step are within the plan");
    STRATA_ASSERT(rows.gather_rows <= gather_max(), "gathered rows are within the plan");
    observer_->on_step(rows);
    for (uint32_t i = 0; i < ops_.size(); ++i) {
        const BoundOp& op = ops_[i];
        const uint32_t row_count = op.gathered ? rows.gather_rows : rows.rows;
        if (row_count == 0) continue;
        observer_->on_op(i, *op.kernel, *op.call.request);
        launch(op, rows, row_count);
    }
    observer_->on_step_end();
}

float* CpuRuntime::logits(uint32_t index) {
    STRATA_ASSERT(index < gather_max(), "logits of a gathered row");
    return slots_[resolved_.step.logits] + uint64_t{index} * vocab_;
}

}  // namespace strata
