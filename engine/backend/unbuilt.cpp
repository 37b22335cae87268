#include "engine/backend/unbuilt.h"

#include <string>

#include "engine/backend/mode_words.h"

namespace strata {

std::vector<Reason> unbuilt_reasons(const Hparams& hparams, const ModePlan& plan) {
    std::vector<Reason> reasons;
    const uint32_t block = dtype_info(plan.kv).block_elements;
    if (hparams.head_dim % block != 0) {
        reasons.push_back({"kv.block",
                           "kv " + kv_name(plan.kv) + " stores blocks of " + std::to_string(block) +
                               " elements; heads of " + std::to_string(hparams.head_dim) +
                               " elements are no whole number of them"});
    }
    if (plan.expert_cache != "off") {
        reasons.push_back(
            {"mode.not_built", "no kernel moves experts between memories in this build"});
    }
    if (plan.kv_resident > 0) {
        reasons.push_back(
            {"mode.not_built", "no kernel moves keys and values between memories in this build"});
    }
    return reasons;
}

}  // namespace strata
