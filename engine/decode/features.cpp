// One row a feature, which says of drafts what is so and has no default; a field asks for it by any
// other value than the one that changes nothing.
#include "engine/decode/features.h"

#include <algorithm>

#include "engine/base/printable.h"

namespace strata {
namespace {

using Params = SamplingParams;

const char* field_if(bool is_asked, const char* field) {
    return is_asked ? field : nullptr;
}

const char* penalty(const Params& p) {
    if (p.penalizes_prompt()) return "repetition_penalty";
    if (p.presence_penalty != 0.0) return "presence_penalty";
    return field_if(p.frequency_penalty != 0.0, "frequency_penalty");
}

constexpr RequestFeature kFeatures[] = {
    // candidates.cpp
    {"sampling",
     [](const Params& p) { return field_if(p.temperature != 0.0, "temperature"); },
     true},
    {"top_k", [](const Params& p) { return field_if(p.top_k != 0, "top_k"); }, true},
    {"top_p", [](const Params& p) { return field_if(p.top_p != 1.0, "top_p"); }, true},
    {"min_p", [](const Params& p) { return field_if(p.min_p != 0.0, "min_p"); }, true},
    {"typical_p", [](const Params& p) { return field_if(p.typical_p != 1.0, "typical_p"); }, true},
    // sampling_state.cpp counts, sampler.cpp adjusts
    {"penalties", penalty, true},
    {"logit_bias",
     [](const Params& p) { return field_if(!p.logit_bias.empty(), "logit_bias"); },
     true},
    {"min_tokens", [](const Params& p) { return field_if(p.min_tokens != 0, "min_tokens"); }, true},
    // loop/scheduler.cpp ends sequences
    {"ignore_eos", [](const Params& p) { return field_if(p.ignore_eos, "ignore_eos"); }, true},
    // philox.h counts the choice
    {"choices", [](const Params& p) { return field_if(p.choice != 0, "choice"); }, true},
    // sampler.cpp scores, for the prompt as loop/scheduler_plan.cpp gathers its rows
    {"logprobs", [](const Params& p) { return field_if(p.logprobs != -1, "logprobs"); }, true},
    {"prompt_logprobs",
     [](const Params& p) { return field_if(p.prompt_logprobs != -1, "prompt_logprobs"); },
     true},
};

constexpr size_t kNameShown = 64;  // bytes of a need that nobody here knows

bool has(std::span<const RequestFeature> features, std::string_view name) {
    return std::any_of(
        features.begin(), features.end(), [&](const RequestFeature& f) { return f.name == name; });
}

Reason refuse(std::string_view asked_by, std::string_view name) {
    return {"mode_unsupported",
            std::string(asked_by) + " needs " + printable(name, kNameShown) +
                ", which its mode does not have"};
}

}  // namespace

std::span<const RequestFeature> decode_features() {
    return kFeatures;
}

std::vector<std::string> feature_names(std::span<const RequestFeature> features) {
    std::vector<std::string> names;
    for (const RequestFeature& feature : features) names.emplace_back(feature.name);
    return names;
}

std::optional<Reason> missing_feature(const SamplingParams& params,
                                      std::span<const RequestFeature> stated) {
    for (const RequestFeature& feature : kFeatures) {
        const char* field = feature.asked_by(params);
        if (field != nullptr && !has(stated, feature.name)) return refuse(field, feature.name);
    }
    for (const std::string& name : params.needs)
        if (!has(stated, name)) return refuse("the request", name);
    return std::nullopt;
}

}  // namespace strata
