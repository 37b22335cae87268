#include "engine/backend/cpu_runtime.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/backend/unbuilt.h"
#include "engine/base/assert.h"
#include "engine/plan/limits.h"
#include "engine/plan/state_layout.h"

namespace strata {

namespace {

std::optional<Drafter> open_drafter(const Model& model, const ModePlan& plan) {
    validate_plan(model, plan);
    return Drafter::open(model, plan.mtp, plan.mtp_hidden_norm);
}

ResolvedPlan resolve_or_throw(const Model& model,
                              const Drafter* drafter,
                              const ModePlan& plan,
                              const Registry& registry) {
    ResolvedPlan resolved = resolve_mode(model, drafter, plan, registry);
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

const Drafter* as_pointer(const std::optional<Drafter>& drafter) {
    return drafter ? &*drafter : nullptr;
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
      drafter_(open_drafter(model, plan)),
      pool_(pool),
      resolved_(resolve_or_throw(model, as_pointer(drafter_), plan, registry)),
      weights_(model,
               as_pointer(drafter_),
               plan_weights(model, as_pointer(drafter_), resolved_),
               pool,
               progress),
      copies_(plan.mmap ? WeightCopies() : WeightCopies(files(), weights_.plan(), progress)),
      memory_(plan_memory(model, as_pointer(drafter_), plan, resolved_, weights_.plan())),
      vocab_(model.hparams().vocab),
      scratch_(memory_.scratch_bytes, "scratch"),
      kv_(memory_.kv_bytes, "keys and values"),
      draft_kv_(memory_.draft ? memory_.draft->kv_bytes : 0, "keys and values of drafts"),
      index_(memory_.index_bytes, "index keys"),
      states_(
          resolved_.step.state_floats, plan.batch, checkpoints_of(plan, resolved_.step), plan.spec),
      step_({resolved_.step,
             resolved_.resolution,
             weights_.plan().step,
             weights_,
             copies_,
             files(),
             model.hparams(),
             weights_.rope(),
             kv_.data(),
             0,
             kv_layer_bytes(model.hparams(), plan),
             scratch_.data(),
             memory_.scratch_thread_bytes,
             &states_,
             {index_.data(), index_layer_bytes(model.hparams(), plan)}}) {
    STRATA_ASSERT(pool.size() == plan.threads, "the pool has the planned threads");
    progress("allocate", memory_.kv_bytes, memory_.kv_bytes);
    if (drafter_) {
        draft_.emplace(StepBinding{*resolved_.draft,
                                   resolved_.draft_resolution,
                                   weights_.plan().draft,
                                   weights_,
                                   copies_,
                                   files(),
                                   drafter_->hparams(),
                                   weights_.draft_rope(),
                                   draft_kv_.data(),
                                   drafter_->hparams().layers,
                                   kv_layer_bytes(drafter_->hparams(), plan),
                                   scratch_.data(),
                                   memory_.scratch_thread_bytes});
    }
    if (plan.mlock) lock_failure_ = lock_memory(lock_ranges(), progress);
}

TensorFiles CpuRuntime::files() const {
    return drafter_ ? drafter_->files() : model_.files();
}

std::vector<LockRange> CpuRuntime::lock_ranges() const {
    std::vector<LockRange> ranges;
    const auto add = [&](const PageBuffer& buffer) {
        if (buffer.data() != nullptr) ranges.push_back({buffer.data(), page_bytes(buffer.bytes())});
    };
    const TensorFiles files = this->files();
    for (uint32_t index = 0; index < kFileCount && memory_.mapped_page_bytes > 0; ++index) {
        for (const FilePages& pages : mapped_file_pages(files, weights_.plan(), index)) {
            const std::byte* const first = files.file(index).part_bytes(pages.part).data();
            ranges.push_back({const_cast<std::byte*>(first) + pages.offset, pages.bytes});
        }
    }
    add(copies_.buffer());
    for (const PageBuffer* buffer : weights_.buffers()) add(*buffer);
    for (const PageBuffer* buffer : {&scratch_, &kv_, &draft_kv_, &index_, &states_.buffer()})
        add(*buffer);
    for (const BoundStep* step : {&step_, draft_ ? &*draft_ : nullptr}) {
        if (step == nullptr) continue;
        add(step->activations());
        add(step->logits());
    }
    return ranges;
}

void CpuRuntime::step(const RowView& rows) {
    step_.run(states_.begin(rows), pool_, *observer_);
    states_.end();
}

StateFacts CpuRuntime::states() const {
    return {resolved_.step.state_floats > 0, states_.checkpoints()};
}

float* CpuRuntime::logits(uint32_t index) {
    STRATA_ASSERT(index < gather_max(), "logits of a gathered row");
    return step_.slot(resolved_.step.logits) + uint64_t{index} * vocab_;
}

const float* CpuRuntime::Drafts::model_hidden(uint32_t row) const {
    const StepPlan& plan = owner_.resolved_.step;
    STRATA_ASSERT(row < plan.rows, "the hidden state of a row");
    return owner_.step_.slot(plan.hidden) + uint64_t{row} * width();
}

float* CpuRuntime::Drafts::input(uint32_t row) {
    STRATA_ASSERT(row < rows_max(), "the input of a row");
    return owner_.draft_->slot(owner_.draft_->plan().input) + uint64_t{row} * width();
}

void CpuRuntime::Drafts::step(const RowView& rows) {
    owner_.draft_->run(rows, owner_.pool_, *owner_.observer_);
}

float* CpuRuntime::Drafts::logits(uint32_t index) {
    STRATA_ASSERT(index < gather_max(), "logits of a gathered row");
    return owner_.draft_->slot(owner_.draft_->plan().logits) + uint64_t{index} * owner_.vocab_;
}

const float* CpuRuntime::Drafts::hidden(uint32_t index) const {
    STRATA_ASSERT(index < gather_max(), "the hidden state of a gathered row");
    return owner_.draft_->slot(owner_.draft_->plan().hidden) + uint64_t{index} * width();
}

}  // namespace strata
