#include "engine/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/model/hparams.h"

namespace strata {

namespace {

constexpr uint64_t kContextMax = 1u << 24;
constexpr double kRampMin = 0.001;  // of its length, where both ends are one pair

[[noreturn]] void refuse(const std::string& key, const std::string& what) {
    throw Error(ErrorKind::Unsupported, "model.metadata", "metadata key " + key + " " + what);
}

// Position scale; 1 where the file has none. An old key is the scale of linear scaling alone.
double read_scale(const MetadataReader& meta) {
    if (meta.has("rope.scaling.factor"))
        return 1.0 / meta.required_float("rope.scaling.factor", 1e-3, 1e6);
    return 1.0 / meta.optional_float("rope.scale_linear", 1.0, 1e-3, 1e6);
}

// The pair that turns `turns` times within the original context, a fraction.
double pair_of_turns(const RopeSizes& sizes, double context, double turns) {
    return sizes.dims * std::log(context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(sizes.base));
}

void read_yarn(const MetadataReader& meta, const RopeSizes& sizes, RopeScaling& scaling) {
    // Other values than these, which change nothing, mean formulas of other models.
    for (const char* name : {"rope.scaling.yarn_attn_factor", "rope.scaling.yarn_log_multiplier"}) {
        const double neutral = std::string_view(name).ends_with("attn_factor") ? 1.0 : 0.0;
        if (meta.optional_float(name, neutral, -1e6, 1e6) != neutral)
            refuse(meta.key(name), "is not supported");
    }
    if (!meta.has("rope.scaling.factor"))
        throw Error(
            ErrorKind::InvalidRequest,
            "model.metadata",
            "metadata key " + meta.key("rope.scaling.factor") + " is missing, which YaRN needs");
    const double kept = meta.optional_float("rope.scaling.yarn_ext_factor", -1.0, -1.0, 1.0);
    scaling.kept = kept < 0 ? 1.0 : kept;  // files write -1 for the usual
    if (scaling.kept == 0) return;
    if (sizes.base <= 1)
        refuse(meta.key("rope.freq_base"),
               "is 1, with which YaRN has no frequencies to tell apart");
    const uint32_t context =
        meta.optional_uint("rope.scaling.original_context_length", sizes.context, 1, kContextMax);
    const double fast = meta.optional_float("rope.scaling.yarn_beta_fast", 32.0, 1e-3, 1e6);
    const double slow = meta.optional_float("rope.scaling.yarn_beta_slow", 1.0, 1e-3, 1e6);
    scaling.ramp_begin = std::max(0.0, std::floor(pair_of_turns(sizes, context, fast)));
    scaling.ramp_end = std::min(sizes.dims - 1.0, std::ceil(pair_of_turns(sizes, context, slow)));
    const double factor = 1.0 / scaling.scale;
    if (factor > 1) scaling.magnitude = 1.0 + 0.1 * std::log(factor);
}

}  // namespace

RopeScaling read_rope_scaling(const MetadataReader& meta, const RopeSizes& sizes) {
    const bool has_factor = meta.has("rope.scaling.factor") || meta.has("rope.scale_linear");
    const std::string type =
        meta.optional_string("rope.scaling.type", has_factor ? "linear" : "none");
    RopeScaling scaling;
    if (type == "linear" || type == "yarn") {
        scaling.scale = read_scale(meta);
    } else if (type != "none") {
        refuse(meta.key("rope.scaling.type"),
               "is \"" + printable(type, 64) + "\"; supported are none, linear and yarn" +
                   (type == "longrope"
                        ? ": longrope chooses between two sets of factors by the length of a text, "
                          "so that its keys would change in the middle of one"
                        : ""));
    }
    if (type == "yarn") read_yarn(meta, sizes, scaling);
    scaling.magnitude *= meta.optional_float("rope.scaling.attn_factor", 1.0, 1e-2, 100.0);
    return scaling;
}

std::vector<double> scaled_rope_frequencies(const RopeScaling& scaling,
                                            uint32_t dims,
                                            double base) {
    std::vector<double> frequencies(dims / 2);
    const double ramp = std::max(kRampMin, scaling.ramp_end - scaling.ramp_begin);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const double pair = static_cast<double>(i);
        const double own = std::pow(base, -2.0 * pair / dims);
        const double along = std::clamp((pair - scaling.ramp_begin) / ramp, 0.0, 1.0);
        const double kept = scaling.kept * (1.0 - along);
        frequencies[i] = own * (scaling.scale * (1.0 - kept) + kept);
    }
    return frequencies;
}

}  // namespace strata
