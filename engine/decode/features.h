// What a request may ask for beyond greedy decoding to a token limit or a stop id: one table with
// a row for each feature that the sampler or the loop implements, under the names of
// protocol/strata_protocol/features.py. What CAPS states and what a request is refused for both
// come from here, so nothing is stated that is not asked for by a field, and no field is dropped.
// tests/unit/test_features.py holds a case for each row that shows it at work.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/decode/sampling_params.h"

namespace strata {

struct RequestFeature {
    std::string_view name;
    // The field that asks for the feature, nullptr where the parameters do not.
    const char* (*asked_by)(const SamplingParams& params);
    // Whether a sequence that verifies drafts serves it too. It does where a row's choice depends
    // on the row's logits, the tokens before it and its position alone, because drafts are verified
    // one after the other, each by that choice.
    bool with_drafts;
};

// All that this engine implements, in the order of the protocol's list.
std::span<const RequestFeature> decode_features();

std::vector<std::string> feature_names(std::span<const RequestFeature> features);

// {"mode_unsupported", sentence} for the first need of `params` that `stated` does not have: one
// that a field asks for, or one that the peer names in `needs`. nullopt when all are served.
std::optional<Reason> missing_feature(const SamplingParams& params,
                                      std::span<const RequestFeature> stated);

}  // namespace strata
