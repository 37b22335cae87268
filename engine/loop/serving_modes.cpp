#include "engine/loop/serving_modes.h"

#include <algorithm>
#include <iterator>

namespace strata {

std::vector<ServingMode> serving_modes(const ModePlan& plan,
                                       std::span<const RequestFeature> features) {
    std::vector<ServingMode> modes;
    if (plan.spec > 0) {
        ServingMode& drafting = modes.emplace_back();
        drafting.drafts = plan.spec;
        std::copy_if(features.begin(),
                     features.end(),
                     std::back_inserter(drafting.features),
                     [](const RequestFeature& feature) { return feature.with_drafts; });
        if (drafting.features.size() == features.size()) return modes;
    }
    modes.push_back({0, {features.begin(), features.end()}});
    return modes;
}

}  // namespace strata
