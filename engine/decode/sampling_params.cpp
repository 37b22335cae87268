// The ranges, one check per field, in the order of the struct.
#include "engine/decode/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace strata {
namespace {

constexpr double kPenaltyMax = 2.0;  // presence and frequency, both signs: OpenAI's range
constexpr double kRepetitionMin = 0.01;
constexpr double kRepetitionMax = 100.0;
constexpr double kBiasMax = 100.0;  // both signs: OpenAI's range
constexpr double kTemperatureMax = 1e6;

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

std::optional<Reason> refuse(const std::string& field,
                             const std::string& value,
                             const std::string& allowed) {
    return Reason{"sampling." + field, field + " is " + value + "; allowed: " + allowed};
}

// Bounds as [low, high], or (low, high] where `open_low`. NaN is in no range.
std::optional<Reason> check_range(
    const char* field, double value, double low, double high, bool open_low = false) {
    if ((open_low ? value > low : value >= low) && value <= high) return std::nullopt;
    return refuse(
        field,
        number(value),
        (open_low ? "above " : "") + number(low) + (open_low ? " to " : "..") + number(high));
}

std::optional<Reason> check_token(const std::string& field, int32_t token, uint32_t vocab) {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab) return std::nullopt;
    return Reason{"sampling." + field,
                  field + " names token " + std::to_string(token) + "; the model has tokens 0.." +
                      std::to_string(vocab - 1)};
}

std::optional<Reason> check_count(const std::string& field, size_t count, uint32_t max) {
    if (count <= max) return std::nullopt;
    return Reason{"sampling." + field,
                  field + " has " + std::to_string(count) + " entries; at most " +
                      std::to_string(max) + " are allowed"};
}

std::optional<Reason> check_logit_bias(const SamplingParams& params, uint32_t vocab) {
    if (auto r = check_count("logit_bias", params.logit_bias.size(), kLogitBiasMax)) return r;
    std::vector<int32_t> tokens;
    for (const LogitBias& entry : params.logit_bias) {
        if (auto r = check_token("logit_bias", entry.token, vocab)) return r;
        if (!(std::fabs(entry.bias) <= kBiasMax))
            return refuse("logit_bias",
                          number(entry.bias) + " for token " + std::to_string(entry.token),
                          number(-kBiasMax) + ".." + number(kBiasMax));
        tokens.push_back(entry.token);
    }
    std::sort(tokens.begin(), tokens.end());
    const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
    if (twice == tokens.end()) return std::nullopt;
    return Reason{"sampling.logit_bias",
                  "logit_bias names token " + std::to_string(*twice) + " twice"};
}

std::optional<Reason> check_stop_ids(const SamplingParams& params, uint32_t vocab) {
    if (auto r = check_count("stop_ids", params.stop_ids.size(), kStopIdsMax)) return r;
    for (const int32_t token : params.stop_ids)
        if (auto r = check_token("stop_ids", token, vocab)) return r;
    if (params.min_tokens == 0 || params.stop_ids.size() < vocab) return std::nullopt;
    std::vector<int32_t> tokens = params.stop_ids;
    std::sort(tokens.begin(), tokens.end());
    const auto distinct = std::unique(tokens.begin(), tokens.end()) - tokens.begin();
    if (static_cast<size_t>(distinct) < vocab) return std::nullopt;
    return Reason{"sampling.stop_ids",
                  "stop_ids name all " + std::to_string(vocab) +
                      " tokens of the model, so min_tokens leaves none to choose"};
}

std::optional<Reason> check_logprobs(const char* field, int32_t value, uint32_t max) {
    if (value >= -1 && value <= static_cast<int32_t>(max)) return std::nullopt;
    return refuse(field, std::to_string(value), "-1 (none) or 0.." + std::to_string(max));
}

}  // namespace

std::optional<Reason> validate(const SamplingParams& params,
                               uint32_t vocab,
                               uint32_t logprobs_max) {
    const uint32_t top_max = std::min({logprobs_max, kTopLogprobsMax, vocab});
    if (params.min_tokens > params.max_tokens)
        return refuse("min_tokens",
                      std::to_string(params.min_tokens),
                      "0.." + std::to_string(params.max_tokens) + " (max_tokens)");
    if (auto r = check_range("temperature", params.temperature, 0, kTemperatureMax)) return r;
    if (auto r = check_range("top_p", params.top_p, 0, 1, true)) return r;
    if (auto r = check_range("min_p", params.min_p, 0, 1)) return r;
    if (auto r = check_range("typical_p", params.typical_p, 0, 1, true)) return r;
    if (auto r = check_range(
            "repetition_penalty", params.repetition_penalty, kRepetitionMin, kRepetitionMax))
        return r;
    if (auto r =
            check_range("presence_penalty", params.presence_penalty, -kPenaltyMax, kPenaltyMax))
        return r;
    if (auto r =
            check_range("frequency_penalty", params.frequency_penalty, -kPenaltyMax, kPenaltyMax))
        return r;
    if (auto r = check_logit_bias(params, vocab)) return r;
    if (auto r = check_stop_ids(params, vocab)) return r;
    if (auto r = check_logprobs("logprobs", params.logprobs, top_max)) return r;
    return check_logprobs("prompt_logprobs", params.prompt_logprobs, top_max);
}

}  // namespace strata
