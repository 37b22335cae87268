#include "engine/backend/capability.h"

#include <algorithm>
#include <set>
#include <utility>

namespace strata {

namespace {

// Collects the candidates and plans them, nearest first in the end.
class Enumeration {
  public:
    Enumeration(Evaluator& evaluator, const Quarantine& quarantine)
        : evaluator_(evaluator), quarantine_(quarantine) {}

    // The candidate, and its fallbacks in what is no axis of list_candidates(). Returns whether one
    // of them can run.
    bool add_with_fallbacks(const RankedCandidate& ranked) {
        bool can_run = add(ranked) || add_smaller_prefill(ranked);
        if (!is_context_hidden(ranked.candidate)) return can_run;
        const std::vector<uint32_t> contexts = halvings(ranked.candidate.max_context);
        for (size_t i = 1; i < contexts.size(); ++i) {
            const RankedCandidate shorter = with_context(ranked, contexts[i], i);
            if (is_context_hidden(shorter.candidate)) continue;
            can_run = add(shorter) || add_smaller_prefill(shorter) || can_run;
            break;
        }
        return can_run;
    }

    // Returns whether it can run.
    bool add(const RankedCandidate& ranked) {
        if (seen_.insert(evaluator_.planned(ranked.candidate)).second) found_.push_back(ranked);
        return evaluator_.evaluate(ranked.candidate).can_run();
    }

    std::vector<RankedCandidate> take_sorted() {
        std::sort(found_.begin(), found_.end(), [](const auto& x, const auto& y) {
            return x.distance < y.distance;
        });
        return std::move(found_);
    }

  private:
    bool is_context_hidden(const Candidate& candidate) {
        const ModePlan& plan = evaluator_.evaluate(candidate).configuration.plan;
        return quarantine_.hides("max_context", std::to_string(plan.max_context));
    }

    bool add_smaller_prefill(const RankedCandidate& ranked) {
        if (evaluator_.has_no_kernels()) return add_fitting_prefill(ranked);
        if (!evaluator_.evaluate(ranked.candidate).is_helped_by_fewer_rows) return false;
        const std::vector<uint32_t> prefills = halvings(ranked.candidate.prefill);
        for (size_t i = 1; i < prefills.size(); ++i) {
            if (evaluator_.lacks_kernels_with(ranked.candidate, prefills[i])) continue;
            const RankedCandidate smaller = with_prefill(ranked, prefills[i], i);
            if (!evaluator_.evaluate(smaller.candidate).can_run()) continue;
            return add(smaller);
        }
        return false;
    }

    // Where nothing can run, a report still tells what memory would hold.
    bool add_fitting_prefill(const RankedCandidate& ranked) {
        if (evaluator_.evaluate(ranked.candidate).fits_memory) return false;
        const std::vector<uint32_t> prefills = halvings(ranked.candidate.prefill);
        for (size_t i = 1; i < prefills.size(); ++i) {
            const RankedCandidate smaller = with_prefill(ranked, prefills[i], i);
            if (evaluator_.evaluate(smaller.candidate).fits_memory) return add(smaller);
        }
        return false;
    }

    Evaluator& evaluator_;
    const Quarantine& quarantine_;
    std::vector<RankedCandidate> found_;
    std::set<Candidate> seen_;
};

std::string without_numbers(const Reason& reason) {
    constexpr std::string_view kOneOnly = " sequences=";  // left out of a request's text for one
    std::string key = reason.code + ": " + reason.text;
    if (const size_t at = key.find(kOneOnly); at != std::string::npos) {
        key.erase(at, kOneOnly.size());
    }
    std::erase_if(key, [](char c) { return c >= '0' && c <= '9'; });
    return key;
}

constexpr std::string_view kShort = "mem.insufficient";

uint64_t memory_bytes(const Configuration& configuration) {
    uint64_t bytes = 0;
    for (const MemoryPart& part : configuration.memory) bytes += part.bytes;
    return bytes;
}

// What memory lacks for `configuration`.
void append_shortage(const Configuration& configuration, std::vector<Reason>& out) {
    for (const Reason& reason : configuration.missing) {
        const bool is_new = std::none_of(out.begin(), out.end(), [&](const Reason& said) {
            return said.code == reason.code && said.text == reason.text;
        });
        if (reason.code == kShort && is_new) out.push_back(reason);
    }
}

}  // namespace

std::vector<Reason> Negotiation::refusal() const {
    std::vector<Reason> reasons;
    bool is_short = false;
    for (const Reason& reason : configurations[plainest].missing) {
        is_short = is_short || reason.code == kShort;
        if (reason.code != kShort) reasons.push_back(reason);
    }
    if (is_short) {
        // The plainest is not the smallest: its caches are f32.
        append_shortage(configurations.front(), reasons);
        append_shortage(*std::min_element(configurations.begin(),
                                          configurations.end(),
                                          [](const Configuration& a, const Configuration& b) {
                                              return memory_bytes(a) < memory_bytes(b);
                                          }),
                        reasons);
    }
    std::set<std::string> said;
    for (const Reason& reason : reasons) said.insert(without_numbers(reason));
    size_t left_out = 0;
    for (const Configuration& configuration : configurations) {
        for (const Reason& reason : configuration.missing) {
            if (!said.insert(without_numbers(reason)).second) continue;
            if (reasons.size() < kRefusalReasonsMax) {
                reasons.push_back(reason);
            } else {
                ++left_out;
            }
        }
    }
    if (left_out > 0) {
        reasons.push_back({"caps.shortened",
                           "and " + std::to_string(left_out) + " more, in the way of " +
                               "configurations nearer to what was asked"});
    }
    return reasons;
}

Negotiation negotiate(const NegotiationInputs& inputs, const std::vector<std::string>& hidden) {
    validate_wanted(inputs.want);
    const Quarantine quarantine(hidden);
    Evaluator evaluator(inputs, quarantine);
    const Candidate wanted = wanted_candidate(inputs.want, evaluator.traits());
    const Candidate plainest = plainest_candidate(wanted);
    // Regardless of the two that have fallbacks.
    const auto is_plain = [&](Candidate candidate) {
        candidate.prefill = plainest.prefill;
        candidate.max_context = plainest.max_context;
        return evaluator.planned(candidate) == evaluator.planned(plainest);
    };
    const auto is_plain_but_types = [&](Candidate candidate) {
        candidate.kv = plainest.kv;
        candidate.activations = plainest.activations;
        return is_plain(candidate);
    };
    Enumeration enumeration(evaluator, quarantine);
    for (const RankedCandidate& ranked : list_candidates(wanted)) {
        const bool can_run = enumeration.add_with_fallbacks(ranked);
        // Where nothing helps, the plainest is planned too, as what stops it stops everything, and
        // where memory is short what may be smaller by its types.
        const bool is_short = !evaluator.evaluate(ranked.candidate).fits_memory;
        const bool is_smallest = is_short && is_plain_but_types(ranked.candidate);
        if (!can_run && (is_plain(ranked.candidate) || is_smallest)) {
            enumeration.add(
                with_prefill(ranked, plainest.prefill, halvings(wanted.prefill).size()));
        }
    }

    Negotiation out;
    out.kv_types = evaluator.kv_types(plainest);
    const std::vector<RankedCandidate> candidates = enumeration.take_sorted();
    for (size_t i = 0; i < candidates.size(); ++i) {
        const Candidate& candidate = candidates[i].candidate;
        const Evaluation& evaluation = evaluator.evaluate(candidate);
        out.configurations.push_back(evaluation.configuration);
        if (!out.best && evaluation.can_run()) out.best = i;
        if (is_plain(candidate)) out.plainest = i;  // of several the one that gives up most
    }
    return out;
}

}  // namespace strata
