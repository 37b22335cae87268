#include "engine/backend/capability.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/backend/candidates.h"
#include "engine/backend/kv_budget.h"
#include "engine/backend/memory_plan.h"
#include "engine/backend/resolve.h"
#include "engine/plan/limits.h"

namespace strata {

namespace {

// What became of planning one candidate: the finished mode and memory, or everything in its way.
struct Evaluation {
    ModePlan plan;
    MemoryPlan memory;
    KvBudget budget;
    bool has_int8 = false;
    std::vector<Reason> missing;
};

class Negotiator {
  public:
    Negotiator(const Model& model,
               const WantedModes& want,
               const Registry& registry,
               const HostFacts& host,
               const std::vector<std::string>& quarantine)
        : model_(model),
          want_(want),
          registry_(registry),
          host_(host),
          quarantine_(quarantine),
          candidates_(list_candidates(want, quarantine_)) {}

    std::variant<Negotiation, Refusal> run() {
        for (const Candidate& candidate : candidates_) {
            Evaluation evaluation = evaluate(candidate);
            if (evaluation.missing.empty()) {
                return report(candidate, evaluation);
            }
        }
        // Nothing runs: the plainest candidate says what is missing at least.
        Refusal refusal;
        if (candidates_.empty()) {
            refusal.reasons.push_back(quarantine_.reason("every configuration"));
        } else {
            refusal.reasons = evaluate(candidates_.back()).missing;
        }
        return refusal;
    }

  private:
    uint32_t wanted_context() const {
        const uint32_t model_context = model_.hparams().context;
        return want_.max_context == 0 ? model_context : std::min(want_.max_context, model_context);
    }

    uint32_t chosen_threads() const {
        const uint32_t cores = std::clamp(host_.cores, 1u, kThreadsMax);
        return want_.threads == 0 ? cores : std::min(want_.threads, cores);
    }

    Evaluation evaluate(const Candidate& candidate) const {
        Evaluation out;
        out.plan.batch = candidate.batch;
        out.plan.prefill = candidate.prefill;
        out.plan.kv = candidate.kv;
        out.plan.activations = candidate.activations;
        out.plan.threads = chosen_threads();
        out.plan.prefix_cache = want_.prefix_cache && !quarantine_.hides("prefix_cache", "on");
        out.plan.max_context = wanted_context();
        const ResolvedPlan resolved = resolve_mode(model_, nullptr, out.plan, registry_);
        out.missing = resolved.missing();
        if (!out.missing.empty()) {
            return out;
        }
        out.has_int8 = uses_int8(resolved.step);
        const WeightPlan weights = plan_weights(model_, nullptr, resolved);
        out.memory = plan_memory(model_, nullptr, out.plan, resolved, weights);
        KvBudgetInputs inputs;
        inputs.batch = out.plan.batch;
        inputs.max_context = out.plan.max_context;
        inputs.kv_tokens = want_.kv_tokens;
        inputs.token_bytes = out.memory.pool_token_bytes();
        inputs.other_bytes = out.memory.bytes_without_kv();
        inputs.available_bytes = host_.memory_available_bytes;
        out.budget = plan_kv_budget(inputs);
        out.missing = out.budget.refused;
        out.plan.kv_tokens = out.budget.kv_tokens;
        out.plan.max_context = out.budget.max_context;
        out.memory = plan_memory(model_, nullptr, out.plan, resolved, weights);
        return out;
    }

    // Why `chosen` differs from what was asked on one axis, which `restored` sets back.
    std::vector<Reason> reasons_for(const std::string& axis,
                                    const std::string& wanted,
                                    const Candidate& restored) const {
        std::vector<Reason> reasons;
        if (quarantine_.hides(axis, wanted)) {
            reasons.push_back(quarantine_.reason(axis + " " + wanted));
        }
        for (Reason& reason : evaluate(restored).missing) {
            reasons.push_back(std::move(reason));
        }
        if (reasons.empty()) {  // only together with another axis is it missing
            reasons = evaluate(wanted_candidate(want_)).missing;
        }
        return reasons;
    }

    // Report of an axis whose value was chosen among candidates.
    ModeReport axis_report(const std::string& axis,
                           const std::string& requested,
                           const std::string& wanted,
                           const std::string& available,
                           const Candidate& restored) const {
        ModeReport report{axis, ModeState::Ready, requested, available, {}};
        if (wanted != available) {
            report.state = ModeState::Limited;
            report.reasons = reasons_for(axis, wanted, restored);
        }
        return report;
    }

    Negotiation report(const Candidate& chosen, Evaluation& evaluation) const {
        Negotiation out;
        out.plan = evaluation.plan;
        const Candidate wanted = wanted_candidate(want_);
        const auto restored = [&](auto member) {
            Candidate candidate = chosen;
            candidate.*member = wanted.*member;
            return candidate;
        };
        const auto number = [](uint64_t value) { return std::to_string(value); };
        out.modes.push_back(axis_report("batch",
                                        number(want_.batch),
                                        number(wanted.batch),
                                        number(chosen.batch),
                                        restored(&Candidate::batch)));
        out.modes.push_back(context_report(evaluation));
        out.modes.push_back(axis_report(
            "kv", want_.kv, kv_name(wanted.kv), kv_name(chosen.kv), restored(&Candidate::kv)));
        out.modes.push_back(kv_tokens_report(evaluation));
        out.modes.push_back(axis_report("prefill",
                                        number(want_.prefill),
                                        number(wanted.prefill),
                                        number(chosen.prefill),
                                        restored(&Candidate::prefill)));
        out.modes.push_back(
            activations_report(chosen, wanted, evaluation, restored(&Candidate::activations)));
        out.plan.activations = evaluation.has_int8 ? chosen.activations : DType::F32;
        out.modes.push_back(threads_report());
        out.modes.push_back(prefix_cache_report());
        out.modes.push_back({"mtp",
                             ModeState::Unsupported,
                             "off",
                             "off",
                             {{"mode.not_built", "drafting is not part of this build"}}});
        out.memory = evaluation.memory.parts();
        return out;
    }

    ModeReport context_report(const Evaluation& evaluation) const {
        ModeReport report{"max_context",
                          ModeState::Ready,
                          want_.max_context == 0 ? "auto" : std::to_string(want_.max_context),
                          std::to_string(evaluation.plan.max_context),
                          evaluation.budget.context_reasons};
        const uint32_t model_context = model_.hparams().context;
        if (want_.max_context > model_context) {
            report.reasons.insert(
                report.reasons.begin(),
                {"model.context",
                 "the model was made for " + std::to_string(model_context) + " tokens"});
        }
        report.state = report.reasons.empty() ? ModeState::Ready : ModeState::Limited;
        return report;
    }

    ModeReport kv_tokens_report(const Evaluation& evaluation) const {
        return {"kv_tokens",
                evaluation.budget.tokens_reasons.empty() ? ModeState::Ready : ModeState::Limited,
                want_.kv_tokens == 0 ? "auto" : std::to_string(want_.kv_tokens),
                std::to_string(evaluation.plan.kv_tokens),
                evaluation.budget.tokens_reasons};
    }

    ModeReport activations_report(const Candidate& chosen,
                                  const Candidate& wanted,
                                  const Evaluation& evaluation,
                                  const Candidate& restored) const {
        if (chosen.activations == DType::I8Block && !evaluation.has_int8) {
            ModeReport report{"activations", ModeState::Ready, want_.activations, "f32", {}};
            if (want_.activations == "int8") {
                report.state = ModeState::Limited;
                report.reasons.push_back(
                    {"model.no_quantized_weights",
                     "no matrix of the model is quantised, so int8 activations have no use"});
            }
            return report;
        }
        return axis_report("activations",
                           want_.activations,
                           activations_name(wanted.activations),
                           activations_name(chosen.activations),
                           restored);
    }

    ModeReport threads_report() const {
        ModeReport report{"threads",
                          ModeState::Ready,
                          want_.threads == 0 ? "auto" : std::to_string(want_.threads),
                          std::to_string(chosen_threads()),
                          {}};
        if (want_.threads > chosen_threads()) {
            report.state = ModeState::Limited;
            report.reasons.push_back(
                {"host.cores", "this process may use " + std::to_string(host_.cores) + " cores"});
        }
        return report;
    }

    ModeReport prefix_cache_report() const {
        ModeReport report{"prefix_cache",
                          ModeState::Ready,
                          want_.prefix_cache ? "on" : "off",
                          want_.prefix_cache ? "on" : "off",
                          {}};
        if (want_.prefix_cache && quarantine_.hides("prefix_cache", "on")) {
            report.state = ModeState::Limited;
            report.available = "off";
            report.reasons.push_back(quarantine_.reason("prefix_cache"));
        }
        return report;
    }

    const Model& model_;
    const WantedModes& want_;
    const Registry& registry_;
    const HostFacts& host_;
    const Quarantine quarantine_;
    const std::vector<Candidate> candidates_;
};

}  // namespace

std::variant<Negotiation, Refusal> negotiate(const Model& model,
                                             const WantedModes& want,
                                             const Registry& registry,
                                             const HostFacts& host,
                                             const std::vector<std::string>& quarantine) {
    validate_wanted(want);
    return Negotiator(model, want, registry, host, quarantine).run();
}

}  // namespace strata
