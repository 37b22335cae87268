#include "engine/backend/evaluation.h"

#include <algorithm>
#include <utility>

#include "engine/backend/kv_types.h"
#include "engine/backend/memory_lock.h"
#include "engine/backend/mode_words.h"
#include "engine/backend/resolve.h"
#include "engine/backend/unbuilt.h"
#include "engine/plan/limits.h"

namespace strata {

namespace {

ModelTraits traits_of(const Model& model) {
    ModelTraits traits;
    traits.context = model.hparams().context;
    traits.has_draft_layers = model.draft_layers() > 0;
    traits.has_experts =
        model.file().find_uint(model.hparams().architecture + ".expert_count").value_or(0) > 0;
    return traits;
}

std::vector<Reason> check_device(const std::string& wanted, const DeviceFacts& device) {
    if (wanted == "auto" || wanted == "0" || wanted == device.name) return {};
    return {{"device.unknown",
             "no device is called \"" + wanted + "\"; the devices are 0 (\"" + device.name +
                 "\", " + device.backend + ")"}};
}

// A plan whose kernels are not all there has no layout of weights yet; they count as in the file.
WeightPlan weights_as_in_file(const TensorFiles& files, const ResolvedPlan& resolved) {
    WeightPlan plan;
    for (uint32_t file = 0; file < kFileCount; ++file) {
        if (files.has_file(file)) {
            plan.is_mapped[file].assign(files.file(file).tensors().size(), false);
        }
    }
    const auto add = [&](const StepPlan& step) {
        for (const PlannedOp& op : step.ops) add_unpacked(plan, files, op);
    };
    add(resolved.step);
    const uint64_t models = plan.mapped_bytes;
    if (resolved.draft) add(*resolved.draft);
    plan.drafters.mapped = plan.mapped_bytes - models;
    return plan;
}

// Operations of the model's step without a kernel. Norms and rounding are left out: whether a step
// has them or their fused form may depend on its rows, everything else in it does not.
std::vector<PlannedOp> lacking_ops(const ResolvedPlan& resolved) {
    std::vector<PlannedOp> lacking;
    for (size_t i = 0; i < resolved.step.ops.size(); ++i) {
        const PlannedOp& op = resolved.step.ops[i];
        const OpKind kind = op.request.kind;
        const bool may_be_fused = kind == OpKind::RmsNorm || kind == OpKind::Quantize;
        // One layer stands for all that are like it; a few others do not matter.
        if (resolved.resolution.kernels[i] == nullptr && !may_be_fused && op.request.layer <= 0) {
            lacking.push_back(op);
        }
    }
    return lacking;
}

const char* on_off(bool value) {
    return value ? "on" : "off";
}

}  // namespace

Evaluator::Evaluator(const NegotiationInputs& inputs, const Quarantine& quarantine)
    : in_(inputs),
      quarantine_(quarantine),
      traits_(traits_of(inputs.model)),
      device_reasons_(check_device(inputs.want.device, inputs.device)) {
    // The fault of a file that a mode names is a reason against the mode, not the end of the start.
    try {
        drafter_ = Drafter::open(
            in_.model, wanted_candidate(in_.want, traits_).mtp, in_.want.mtp_hidden_norm);
    } catch (const Error& error) {
        const std::string mtp = wanted_candidate(in_.want, traits_).mtp;
        const std::string whose = mtp == "model" ? "the model's draft layers" : mtp;
        std::string text = error.what();
        if (text.find(whose) == std::string::npos) text = whose + ": " + text;
        drafter_reasons_.push_back({error.code(), std::move(text)});
    }
}

const Evaluation& Evaluator::evaluate(const Candidate& candidate) {
    const auto known = evaluations_.find(candidate);
    if (known != evaluations_.end()) return known->second;
    return evaluations_.emplace(candidate, plan_candidate(candidate)).first->second;
}

Candidate Evaluator::planned(const Candidate& candidate) {
    Candidate out = candidate;
    out.activations = evaluate(candidate).configuration.plan.activations;
    return out;
}

const Evaluator::StepFacts& Evaluator::step_facts(const ModePlan& plan) {
    const StepKey key{
        plan.batch, plan.prefill, plan.kv, plan.activations, plan.mtp, plan.spec, plan.batch_mtp};
    const auto known = steps_.find(key);
    if (known != steps_.end()) return known->second;
    return steps_.emplace(key, plan_step(plan)).first->second;
}

bool Evaluator::lacks_kernels_with(const Candidate& candidate, uint32_t prefill) {
    ModePlan plan = first_plan(candidate);
    const StepFacts& step = step_facts(plan);
    plan.prefill = prefill;
    const uint32_t gather_rows = gather_rows_of(plan, in_.model.hparams().vocab);
    return std::any_of(step.lacking.begin(), step.lacking.end(), [&](const PlannedOp& op) {
        OpRequest request = op.request;
        request.rows = op.gathered ? gather_rows : plan.rows_max();
        return std::holds_alternative<Refusal>(in_.registry.find(request));
    });
}

Evaluator::StepFacts Evaluator::plan_step(const ModePlan& plan) const {
    ModePlan planned = plan;
    if (!drafter_) planned.spec = 0;  // a drafter that cannot be read has no step
    const Drafter* drafter = planned.spec > 0 ? &*drafter_ : nullptr;
    const ResolvedPlan resolved = resolve_mode(in_.model, drafter, planned, in_.registry);
    StepFacts facts;
    const std::optional<Reason> kv =
        kv_type_reason(resolved, in_.registry, planned.kv, in_.device.backend);
    if (kv) facts.missing.push_back(*kv);
    for (Reason& reason : resolved.missing()) facts.missing.push_back(std::move(reason));
    facts.lacking = lacking_ops(resolved);
    facts.has_int8 = uses_int8(resolved.step);
    const WeightPlan weights =
        resolved.is_complete()
            ? plan_weights(in_.model, drafter, resolved)
            : weights_as_in_file(in_.model.files(drafter ? &drafter->file() : nullptr), resolved);
    facts.memory = plan_memory(in_.model, drafter, planned, resolved, weights);
    return facts;
}

std::vector<std::string> Evaluator::kv_types(const Candidate& candidate) const {
    ModePlan plan = first_plan(candidate);
    plan.spec = 0;
    std::vector<std::string> names;
    for (const DType type :
         served_kv_types(resolve_mode(in_.model, nullptr, plan, in_.registry), in_.registry)) {
        names.push_back(kv_name(type));
    }
    return names;
}

ModePlan Evaluator::first_plan(const Candidate& candidate) const {
    ModePlan plan;
    plan.batch = candidate.batch;
    plan.max_context = candidate.max_context;
    plan.kv = candidate.kv;
    plan.prefill = candidate.prefill;
    plan.activations = candidate.activations;
    const uint32_t cores = std::clamp(in_.host.cores, 1u, kThreadsMax);
    plan.threads = in_.want.threads == 0 ? cores : std::min(in_.want.threads, cores);
    plan.prefix_cache = in_.want.prefix_cache && !quarantine_.hides("prefix_cache", "on");
    plan.mtp = candidate.mtp;
    plan.spec = candidate.spec;
    plan.spec_min_p = candidate.spec > 0 ? in_.want.spec_min_p : 0;
    plan.batch_mtp = candidate.batch_mtp;
    plan.mmap = in_.want.mmap;
    plan.expert_cache = candidate.expert_cache;
    plan.kv_resident = candidate.kv_resident;
    plan.mtp_hidden_norm = in_.want.mtp_hidden_norm;
    return plan;
}

Evaluation Evaluator::plan_candidate(const Candidate& candidate) {
    Evaluation out;
    Configuration& configuration = out.configuration;
    ModePlan& plan = configuration.plan;
    std::vector<Reason>& missing = configuration.missing;
    plan = first_plan(candidate);
    const StepFacts& step = step_facts(plan);
    plan.activations = step.has_int8 ? plan.activations : DType::F32;
    const auto add = [&](const std::vector<Reason>& reasons) {
        missing.insert(missing.end(), reasons.begin(), reasons.end());
    };
    add(device_reasons_);
    if (has_no_kernels()) {
        missing.push_back({"kernel.none",
                           "no kernel of the backend " + in_.device.backend +
                               " is written yet, so nothing can run on it"});
    }
    if (plan.spec > 0) add(drafter_reasons_);
    const size_t lasting = missing.size();
    add(step.missing);
    const size_t kernels = missing.size();
    add(unbuilt_reasons(in_.model.hparams(), plan));
    const size_t unbuilt = missing.size() - kernels;
    out.fits_memory = fit_memory(step, candidate, configuration);
    const bool is_hidden = add_quarantined(configuration);
    add_shortfalls(candidate, step.has_int8, configuration);
    out.is_helped_by_fewer_rows = !missing.empty() && lasting == 0 && unbuilt == 0 && !is_hidden;
    return out;
}

bool Evaluator::fit_memory(const StepFacts& step,
                           const Candidate& candidate,
                           Configuration& out) const {
    MemoryPlan memory = step.memory;
    KvBudgetInputs inputs;
    inputs.batch = candidate.batch;
    inputs.max_context = candidate.max_context;
    inputs.kv_tokens = in_.want.kv_tokens;
    inputs.token_bytes = memory.pool_token_bytes();
    inputs.others = memory.parts_without_kv();
    inputs.kv = kv_name(candidate.kv);
    const uint64_t allowed = in_.want.device_memory;
    const uint64_t available = in_.device.memory_available_bytes;
    const bool is_capped = allowed > 0 && (available == 0 || allowed < available);
    inputs.available_bytes = is_capped ? allowed : available;
    inputs.available_text = is_capped               ? "allowed by device_memory"
                            : in_.device.is_assumed ? "assumed device memory"
                                                    : "available memory";
    const KvBudget budget = plan_kv_budget(inputs);
    out.plan.kv_tokens = budget.kv_tokens;
    out.plan.max_context = budget.max_context;
    out.missing.insert(out.missing.end(), budget.refused.begin(), budget.refused.end());
    for (const Reason& reason : budget.context_reasons) {
        out.shortfalls.push_back({"max_context", reason});
    }
    for (const Reason& reason : budget.tokens_reasons) {
        out.shortfalls.push_back({"kv_tokens", reason});
    }
    plan_pools(memory, in_.model, drafter_ ? &*drafter_ : nullptr, out.plan);
    if (in_.want.mlock) {
        const std::optional<Reason> shortage =
            memlock_shortage(memory.lock_bytes(), in_.host.memory_lockable_bytes);
        out.plan.mlock = !shortage;
        if (shortage) out.shortfalls.push_back({"mlock", *shortage});
    }
    out.memory = memory.parts();
    return budget.refused.empty();
}

bool Evaluator::add_quarantined(Configuration& out) const {
    const ModePlan& plan = out.plan;
    const std::pair<const char*, std::string> values[] = {
        {"batch", std::to_string(plan.batch)},
        {"max_context", std::to_string(plan.max_context)},
        {"kv", kv_name(plan.kv)},
        {"prefill", std::to_string(plan.prefill)},
        {"activations", activations_name(plan.activations)},
        {"mtp", plan.mtp},
        {"spec", std::to_string(plan.spec)},
        {"batch_mtp", on_off(plan.batch_mtp)},
    };
    bool is_other_hidden = false;
    for (const auto& [axis, value] : values) {
        if (!quarantine_.hides(axis, value)) continue;
        out.missing.push_back(quarantine_.reason(axis, value));
        is_other_hidden = is_other_hidden || std::string_view(axis) != "prefill";
    }
    return is_other_hidden;
}

void Evaluator::add_shortfalls(const Candidate& candidate,
                               bool has_int8,
                               Configuration& out) const {
    const WantedModes& want = in_.want;
    const auto add = [&](const char* axis, const char* code, const std::string& text) {
        out.shortfalls.push_back({axis, {code, text}});
    };
    if (want.max_context > traits_.context) {
        add("max_context",
            "model.context",
            "the model was made for " + std::to_string(traits_.context) + " tokens");
    }
    if (want.threads > out.plan.threads) {
        add("threads",
            "host.cores",
            (in_.device.is_assumed ? "the machine is assumed to have " : "this process may use ") +
                std::to_string(in_.host.cores) + " cores");
    }
    if (want.activations == "int8" && candidate.activations == DType::I8Block && !has_int8) {
        add("activations",
            "model.no_quantized_weights",
            "no matrix of the model is quantised, so int8 activations have no use");
    }
    if (want.prefix_cache && !out.plan.prefix_cache) {
        const Reason reason = quarantine_.reason("prefix_cache", "on");
        out.shortfalls.push_back({"prefix_cache", reason});
    }
    if (want.expert_cache != "auto" && want.expert_cache != "off" && !traits_.has_experts) {
        add("expert_cache", "model.no_experts", "the model has no experts to keep anywhere");
    }
    const Candidate wanted = wanted_candidate(want, traits_);
    if (wanted.spec == 0 && (want.spec > 0 || want.batch_mtp == "on" || want.spec_min_p > 0)) {
        const std::string text = want.mtp == "off" ? "mtp is off, so nothing is drafted"
                                                   : "the model file has no draft layers, and mtp "
                                                     "names no drafter's file";
        if (want.spec > 0) add("spec", "mode.no_drafts", text);
        if (want.batch_mtp == "on") add("batch_mtp", "mode.no_drafts", text);
        if (want.spec_min_p > 0) add("spec_min_p", "mode.no_drafts", text);
    }
    if (want.batch_mtp == "on" && candidate.spec > 0 && candidate.batch == 1) {
        add("batch_mtp", "mode.one_sequence", "with a batch of 1 no sequences share a step");
    }
}

}  // namespace strata
