#include "engine/backend/mode_reports.h"

#include <string>
#include <utility>

#include "engine/backend/mode_words.h"

namespace strata {

namespace {

class Reporter {
  public:
    Reporter(Evaluator& evaluator, const WantedModes& want, const Candidate& chosen)
        : evaluator_(evaluator),
          want_(want),
          wanted_(wanted_candidate(want, evaluator.traits())),
          chosen_(chosen),
          configuration_(evaluator.evaluate(chosen).configuration) {}

    std::vector<ModeReport> run() {
        const ModePlan& plan = configuration_.plan;
        add("batch", number(want_.batch), number(plan.batch), [&](Candidate& c) {
            c.batch = wanted_.batch;
        });
        add("max_context",
            number_or_auto(want_.max_context),
            number(plan.max_context),
            [&](Candidate& c) { c.max_context = wanted_.max_context; });
        add("kv", want_.kv, kv_name(plan.kv), [&](Candidate& c) { c.kv = wanted_.kv; });
        add("kv_tokens", number_or_auto(want_.kv_tokens), number(plan.kv_tokens), [](Candidate&) {
        });
        add("prefill", number(want_.prefill), number(plan.prefill), [&](Candidate& c) {
            c.prefill = wanted_.prefill;
        });
        add("activations",
            want_.activations,
            activations_name(plan.activations),
            [&](Candidate& c) { c.activations = wanted_.activations; });
        add("threads", number_or_auto(want_.threads), number(plan.threads), [](Candidate&) {});
        add("prefix_cache", on_off(want_.prefix_cache), on_off(plan.prefix_cache), [](Candidate&) {
        });
        add("mtp", want_.mtp, plan.mtp, [&](Candidate& c) {
            c.mtp = wanted_.mtp;
            c.spec = wanted_.spec;
            c.batch_mtp = wanted_.batch_mtp && c.batch > 1;
        });
        if (want_.mtp == "auto" && wanted_.mtp == "off") {
            reports_.back().state = ModeState::Unsupported;
            reports_.back().reasons = {{"mode.no_drafts", "the model file has no draft layers"}};
        }
        return std::move(reports_);
    }

  private:
    static std::string number(uint64_t value) { return std::to_string(value); }
    static std::string number_or_auto(uint64_t value) {
        return value == 0 ? "auto" : number(value);
    }
    static std::string on_off(bool value) { return value ? "on" : "off"; }

    template <class RestoreFn>
    void add(const char* axis, std::string requested, std::string available, RestoreFn restore) {
        ModeReport report{axis, ModeState::Ready, std::move(requested), std::move(available), {}};
        Candidate restored = chosen_;
        restore(restored);
        if (!(restored == chosen_)) {
            report.reasons = evaluator_.evaluate(restored).configuration.missing;
            if (report.reasons.empty()) {  // only together with another axis is it missing
                report.reasons = evaluator_.evaluate(wanted_).configuration.missing;
            }
        }
        for (const Shortfall& shortfall : configuration_.shortfalls) {
            if (shortfall.axis == axis) report.reasons.push_back(shortfall.reason);
        }
        report.state = report.reasons.empty() ? ModeState::Ready : ModeState::Limited;
        reports_.push_back(std::move(report));
    }

    Evaluator& evaluator_;
    const WantedModes& want_;
    const Candidate wanted_;
    const Candidate chosen_;
    const Configuration configuration_;
    std::vector<ModeReport> reports_;
};

}  // namespace

std::vector<ModeReport> report_modes(Evaluator& evaluator,
                                     const WantedModes& want,
                                     const Candidate& chosen) {
    return Reporter(evaluator, want, chosen).run();
}

}  // namespace strata
