#include "engine/backend/candidates.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/backend/mode_words.h"
#include "engine/plan/limits.h"

namespace strata {

namespace {

constexpr uint32_t kSpecAuto = 3;

[[noreturn]] void throw_config(const char* axis, const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, std::string("config.") + axis, text);
}

void check_number(const char* axis, uint64_t value, uint64_t max) {
    if (value > max) {
        throw_config(axis,
                     std::string(axis) + " is " + std::to_string(value) + "; allowed are 1 to " +
                         std::to_string(max));
    }
}

void check_word(const char* axis,
                const std::string& value,
                const std::string& allowed,
                bool is_ok) {
    if (!is_ok)
        throw_config(axis, std::string(axis) + " is \"" + value + "\"; allowed are " + allowed);
}

bool is_positive_number(const std::string& text) {
    uint64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc() && end == text.data() + text.size() && value > 0;
}

// Places of the axes in a candidate's loss. A step on a cheaper axis never outweighs one on a
// dearer, and no two candidates lose the same.
constexpr uint64_t kKvLoss = 1;
constexpr uint64_t kActivationsLoss = kKvLoss * 4;
constexpr uint64_t kDraftsLoss = kActivationsLoss * 2;
constexpr uint64_t kBatchLoss = kDraftsLoss * 16;
constexpr uint64_t kExpertLoss = kBatchLoss * 16;
constexpr uint64_t kResidentLoss = kExpertLoss * 2;
constexpr uint64_t kContextLoss = kResidentLoss * 2;
constexpr uint64_t kPrefillLoss = kContextLoss * 64;

// One way to draft, and how many axes it gives up.
struct Drafts {
    std::string mtp = "off";
    uint32_t spec = 0;
    bool batch_mtp = false;
    uint32_t axes = 0;
};

// Best first. With a batch of 1 no sequences share a step: drafts are solo, and nothing is given up
// by that.
std::vector<Drafts> list_drafts(const Candidate& wanted, uint32_t batch) {
    std::vector<Drafts> drafts;
    if (wanted.spec > 0) {
        for (const uint32_t spec : halvings(wanted.spec)) {
            const uint32_t fewer = spec < wanted.spec ? 1 : 0;
            const bool can_share = wanted.batch_mtp && batch > 1;
            if (can_share) drafts.push_back({wanted.mtp, spec, true, fewer});
            drafts.push_back({wanted.mtp, spec, false, fewer + (can_share ? 1 : 0)});
        }
    }
    drafts.push_back({"off", 0, false, wanted.spec > 0 ? 1u : 0u});
    return drafts;
}

// `wanted`, then what is plainer: f16 before f32.
std::vector<DType> list_kv(DType wanted) {
    if (wanted == DType::F32) return {DType::F32};
    if (wanted == DType::F16) return {DType::F16, DType::F32};
    return {wanted, DType::F16, DType::F32};
}

template <class T>
std::vector<T> with_plain(const T& wanted, const T& plain) {
    return wanted == plain ? std::vector<T>{plain} : std::vector<T>{wanted, plain};
}

}  // namespace

std::vector<uint32_t> halvings(uint32_t value) {
    std::vector<uint32_t> values;
    for (; value > 1; value /= 2) {
        values.push_back(value);
    }
    values.push_back(1);
    return values;
}

void validate_wanted(const WantedModes& want) {
    check_number("batch", want.batch, kBatchMax);
    check_number("prefill", want.prefill, kPrefillMax);
    check_number("threads", want.threads, kThreadsMax);
    check_number("kv_tokens", want.kv_tokens, kKvTokensMax);
    check_number("spec", want.spec, kSpecMax);
    if (!(want.spec_min_p >= 0 && want.spec_min_p <= 1)) {
        throw_config("spec_min_p",
                     "spec_min_p is " + std::to_string(want.spec_min_p) + "; allowed are 0 to 1");
    }
    if (want.kv != "auto") parse_kv(want.kv);
    if (want.activations != "auto") parse_activations(want.activations);
    check_word("batch_mtp",
               want.batch_mtp,
               "auto, on and off",
               want.batch_mtp == "auto" || want.batch_mtp == "on" || want.batch_mtp == "off");
    check_word("mtp_hidden_norm",
               want.mtp_hidden_norm,
               "auto, stream and whole",
               want.mtp_hidden_norm == "auto" || want.mtp_hidden_norm == "stream" ||
                   want.mtp_hidden_norm == "whole");
    check_word("expert_cache",
               want.expert_cache,
               "auto, off and a number of experts",
               want.expert_cache == "auto" || want.expert_cache == "off" ||
                   is_positive_number(want.expert_cache));
    check_word("mtp", want.mtp, "auto, off and the path of a drafter's file", !want.mtp.empty());
}

Candidate wanted_candidate(const WantedModes& want, const ModelTraits& traits) {
    const WantedModes defaults;
    Candidate candidate;
    candidate.batch = want.batch == 0 ? defaults.batch : want.batch;
    candidate.prefill = want.prefill == 0 ? defaults.prefill : want.prefill;
    candidate.kv = want.kv == "auto" ? DType::F16 : parse_kv(want.kv);
    candidate.activations =
        want.activations == "auto" ? DType::I8Block : parse_activations(want.activations);
    candidate.max_context =
        want.max_context == 0 ? traits.context : std::min(want.max_context, traits.context);
    candidate.mtp = want.mtp != "auto" ? want.mtp : traits.has_draft_layers ? "model" : "off";
    if (candidate.mtp != "off") {
        candidate.spec = want.spec == 0 ? kSpecAuto : want.spec;
        candidate.batch_mtp = want.batch_mtp != "off" && candidate.batch > 1;
    }
    if (traits.has_experts && want.expert_cache != "auto") {
        candidate.expert_cache = want.expert_cache;
    }
    candidate.kv_resident = want.kv_resident;
    return candidate;
}

std::vector<RankedCandidate> list_candidates(const Candidate& wanted) {
    const std::vector<uint32_t> batches = halvings(wanted.batch);
    const std::vector<DType> kvs = list_kv(wanted.kv);
    const std::vector<DType> activations = with_plain(wanted.activations, DType::F32);
    const std::vector<std::string> caches = with_plain<std::string>(wanted.expert_cache, "off");
    const std::vector<uint64_t> residents = with_plain<uint64_t>(wanted.kv_resident, 0);

    std::vector<RankedCandidate> ranked;
    const auto add =
        [&](size_t b, const Drafts& draft, size_t d, size_t k, size_t a, size_t e, size_t r) {
            Candidate candidate = wanted;
            candidate.batch = batches[b];
            candidate.mtp = draft.mtp;
            candidate.spec = draft.spec;
            candidate.batch_mtp = draft.batch_mtp;
            candidate.kv = kvs[k];
            candidate.activations = activations[a];
            candidate.expert_cache = caches[e];
            candidate.kv_resident = residents[r];
            Distance distance;
            distance.axes = draft.axes;
            for (const size_t step : {b, k, a, e, r}) distance.axes += step > 0 ? 1 : 0;
            distance.loss = k * kKvLoss + a * kActivationsLoss + d * kDraftsLoss + b * kBatchLoss +
                            e * kExpertLoss + r * kResidentLoss;
            ranked.push_back({std::move(candidate), distance});
        };
    for (size_t b = 0; b < batches.size(); ++b) {
        const std::vector<Drafts> drafts = list_drafts(wanted, batches[b]);
        for (size_t d = 0; d < drafts.size(); ++d) {
            for (size_t k = 0; k < kvs.size(); ++k) {
                for (size_t a = 0; a < activations.size(); ++a) {
                    for (size_t e = 0; e < caches.size(); ++e) {
                        for (size_t r = 0; r < residents.size(); ++r) {
                            add(b, drafts[d], d, k, a, e, r);
                        }
                    }
                }
            }
        }
    }
    std::sort(ranked.begin(), ranked.end(), [](const auto& x, const auto& y) {
        return x.distance < y.distance;
    });
    return ranked;
}

Candidate plainest_candidate(const Candidate& wanted) {
    Candidate plainest;
    plainest.max_context = wanted.max_context;
    return plainest;
}

RankedCandidate with_prefill(const RankedCandidate& from, uint32_t prefill, size_t halvings) {
    RankedCandidate out = from;
    out.candidate.prefill = prefill;
    out.distance.axes += 1;
    out.distance.loss += halvings * kPrefillLoss;
    return out;
}

RankedCandidate with_context(const RankedCandidate& from, uint32_t max_context, size_t halvings) {
    RankedCandidate out = from;
    out.candidate.max_context = max_context;
    out.distance.axes += 1;
    out.distance.loss += halvings * kContextLoss;
    return out;
}

DType parse_kv(const std::string& name) {
    const std::optional<DType> type = find_kv(name);
    check_word("kv", name, "auto, " + kv_words(), type.has_value());
    return *type;
}

DType parse_activations(const std::string& name) {
    const std::optional<DType> type = find_activations(name);
    check_word("activations", name, "auto, " + activations_words(), type.has_value());
    return *type;
}

}  // namespace strata
