// Bounds of the values that users and supervisors may ask for, as the contract between the
// processes states them (protocol/strata_protocol/limits.py). They keep products of sizes within 64
// bits; whether a machine can run them is the planner's question. With them, the plainest value of
// each mode that can be taken out.
#pragma once

#include "protocol/cpp/codes.h"

namespace strata {

using protocol::kBatchMax;
using protocol::kContextMin;
using protocol::kKvTokensMax;
using protocol::kModePlainest;
using protocol::kPrefillMax;
using protocol::kSpecMax;
using protocol::kThreadsMax;
using protocol::ModePlainest;

}  // namespace strata
