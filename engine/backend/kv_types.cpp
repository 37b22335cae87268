#include "engine/backend/kv_types.h"

#include <algorithm>
#include <variant>

#include "engine/backend/mode_words.h"
#include "engine/plan/type_words.h"

namespace strata {

namespace {

bool is_alike(const OpRequest& a, const OpRequest& b) {
    return a.kind == b.kind && a.n == b.n && a.k == b.k && a.heads == b.heads &&
           a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.features == b.features;
}

// Each request that touches keys and values, once for all layers that are alike.
std::vector<OpRequest> kv_requests(const ResolvedPlan& plan) {
    std::vector<OpRequest> requests;
    const auto add = [&](const StepPlan& step) {
        for (const PlannedOp& op : step.ops) {
            const OpRequest& request = op.request;
            if (request.kv == DType::None) continue;
            const bool is_known =
                std::any_of(requests.begin(), requests.end(), [&](const OpRequest& known) {
                    return is_alike(known, request);
                });
            if (!is_known) requests.push_back(request);
        }
    };
    add(plan.step);
    if (plan.draft) add(*plan.draft);
    return requests;
}

bool is_served(const std::vector<OpRequest>& requests, const Registry& registry, DType kv) {
    return std::all_of(requests.begin(), requests.end(), [&](OpRequest request) {
        request.kv = kv;
        return std::holds_alternative<const KernelEntry*>(registry.find(request));
    });
}

}  // namespace

std::vector<DType> served_kv_types(const ResolvedPlan& plan, const Registry& registry) {
    const std::vector<OpRequest> requests = kv_requests(plan);
    std::vector<DType> served;
    if (requests.empty()) return served;
    for (const TypeWord& entry : kKvWords) {
        if (is_served(requests, registry, entry.type)) served.push_back(entry.type);
    }
    return served;
}

std::string kv_type_list(const std::vector<DType>& types) {
    std::string list;
    for (const DType type : types) list += (list.empty() ? "" : ", ") + kv_name(type);
    return list;
}

std::optional<Reason> kv_type_reason(const ResolvedPlan& plan,
                                     const Registry& registry,
                                     DType kv,
                                     const std::string& backend) {
    if (plan.is_complete() || is_served(kv_requests(plan), registry, kv)) return std::nullopt;
    const std::vector<DType> served = served_kv_types(plan, registry);
    if (served.empty()) return std::nullopt;
    return Reason{"kernel.kv_type",
                  "the backend " + backend + " runs kv " + kv_type_list(served) +
                      " here and has no kernels for " + kv_name(kv)};
}

}  // namespace strata
