// Between the protocol's records and the engine's own types of the same names. The protocol speaks
// of modes in words ("int8"), the engine in types; everything else is field by field.
#pragma once

#include <vector>

#include "engine/backend/host.h"
#include "engine/decode/sampler.h"
#include "engine/loop/serving_modes.h"
#include "engine/model/model.h"
#include "engine/plan/mode.h"
#include "protocol/cpp/messages.h"

namespace strata {

WantedModes from_wire(const protocol::WantedModes& want);
SamplingParams from_wire(protocol::SamplingParams&& params);

// Throws Error{InvalidRequest, "plan.range"} that names a word it does not know, or a KV pool that
// is no whole number of pages.
ModePlan from_wire(const protocol::ModePlan& plan);

protocol::ModePlan to_wire(const ModePlan& plan);
protocol::HostFacts to_wire(const HostFacts& host);
protocol::DeviceFacts to_wire(const DeviceFacts& device);
protocol::ModelFacts to_wire(const ModelFacts& facts);
protocol::ServingMode to_wire(const ServingMode& mode);
std::vector<protocol::ServingMode> to_wire(const std::vector<ServingMode>& modes);
std::vector<protocol::MemoryPart> to_wire(const std::vector<MemoryPart>& memory);

// Overwrites `out`, keeping its memory.
void to_wire(const TokenLogprob& logprob, protocol::TokenLogprob& out);

}  // namespace strata
