#include "engine/loop/convert.h"

#include <optional>
#include <utility>

#include "engine/backend/mode_words.h"

namespace strata {

namespace {

DType known(std::optional<DType> type,
            const std::string& field,
            const std::string& word,
            const std::string& words) {
    if (type) return *type;
    throw Error(ErrorKind::InvalidRequest,
                "plan.range",
                "plan." + field + " is \"" + word + "\"; known: " + words);
}

}  // namespace

WantedModes from_wire(const protocol::WantedModes& want) {
    return {want.batch,
            want.max_context,
            want.kv,
            want.prefill,
            want.activations,
            want.threads,
            want.kv_tokens,
            want.prefix_cache,
            want.mtp,
            want.spec,
            want.spec_min_p,
            want.batch_mtp,
            want.device,
            want.device_memory,
            want.mmap,
            want.mlock,
            want.expert_cache,
            want.kv_resident,
            want.mtp_hidden_norm};
}

SamplingParams from_wire(protocol::SamplingParams&& params) {
    SamplingParams out;
    out.max_tokens = params.max_tokens;
    out.min_tokens = params.min_tokens;
    out.temperature = params.temperature;
    out.top_k = params.top_k;
    out.top_p = params.top_p;
    out.min_p = params.min_p;
    out.typical_p = params.typical_p;
    out.repetition_penalty = params.repetition_penalty;
    out.presence_penalty = params.presence_penalty;
    out.frequency_penalty = params.frequency_penalty;
    out.logit_bias.reserve(params.logit_bias.size());
    for (const protocol::LogitBias& bias : params.logit_bias) {
        out.logit_bias.push_back({bias.token, bias.bias});
    }
    out.seed = params.seed;
    out.choice = params.choice;
    out.stop_ids = std::move(params.stop_ids);
    out.ignore_eos = params.ignore_eos;
    out.logprobs = params.logprobs;
    out.prompt_logprobs = params.prompt_logprobs;
    out.needs = std::move(params.needs);
    return out;
}

ModePlan from_wire(const protocol::ModePlan& plan) {
    if (plan.kv_tokens == 0 || plan.kv_tokens % kPageTokens != 0) {
        throw Error(ErrorKind::InvalidRequest,
                    "plan.range",
                    "plan.kv_tokens is " + std::to_string(plan.kv_tokens) +
                        "; it must be a positive multiple of " + std::to_string(kPageTokens));
    }
    return {plan.batch,
            plan.max_context,
            known(find_kv(plan.kv), "kv", plan.kv, kv_words()),
            plan.prefill,
            known(find_activations(plan.activations),
                  "activations",
                  plan.activations,
                  activations_words()),
            plan.threads,
            plan.kv_tokens,
            plan.prefix_cache,
            plan.mtp,
            plan.spec,
            plan.spec_min_p,
            plan.batch_mtp,
            plan.mmap,
            plan.mlock,
            plan.expert_cache,
            plan.kv_resident,
            plan.mtp_hidden_norm};
}

protocol::ModePlan to_wire(const ModePlan& plan) {
    return {plan.batch,
            plan.max_context,
            kv_name(plan.kv),
            plan.prefill,
            activations_name(plan.activations),
            plan.threads,
            plan.kv_tokens,
            plan.prefix_cache,
            plan.mtp,
            plan.spec,
            plan.spec_min_p,
            plan.batch_mtp,
            plan.mmap,
            plan.mlock,
            plan.expert_cache,
            plan.kv_resident,
            plan.mtp_hidden_norm};
}

protocol::HostFacts to_wire(const HostFacts& host) {
    return {host.os,
            host.cpu,
            host.isa,
            host.cores,
            host.memory_total_bytes,
            host.memory_available_bytes};
}

protocol::DeviceFacts to_wire(const DeviceFacts& device) {
    return {device.name,
            device.backend,
            device.memory_total_bytes,
            device.memory_available_bytes,
            device.is_assumed};
}

protocol::ModelFacts to_wire(const ModelFacts& facts) {
    return {facts.architecture,
            facts.name,
            facts.file_bytes,
            facts.parameters,
            facts.layers,
            facts.vocab,
            facts.context,
            facts.types,
            facts.sha256_head};
}

protocol::ServingMode to_wire(const ServingMode& mode) {
    return {mode.drafts, feature_names(mode.features)};
}

std::vector<protocol::ServingMode> to_wire(const std::vector<ServingMode>& modes) {
    std::vector<protocol::ServingMode> out;
    for (const ServingMode& mode : modes) out.push_back(to_wire(mode));
    return out;
}

std::vector<protocol::MemoryPart> to_wire(const std::vector<MemoryPart>& memory) {
    std::vector<protocol::MemoryPart> out;
    out.reserve(memory.size());
    for (const MemoryPart& part : memory) {
        out.push_back({part.name, part.bytes, part.text, part.on_demand_bytes});
    }
    return out;
}

void to_wire(const TokenLogprob& logprob, protocol::TokenLogprob& out) {
    out.logprob = logprob.logprob;
    out.top.clear();
    for (const TopLogprob& top : logprob.top()) out.top.push_back({top.token, top.logprob});
}

}  // namespace strata
