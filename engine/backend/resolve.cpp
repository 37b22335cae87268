#include "engine/backend/resolve.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace strata {

namespace {

constexpr size_t kRefusedShown = 4;

bool same_shape(const OpRequest& a, const OpRequest& b) {
    return a.kind == b.kind && a.weight == b.weight && a.act == b.act && a.kv == b.kv &&
           a.rows == b.rows && a.sequences == b.sequences && a.n == b.n && a.k == b.k &&
           a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
           a.rope_dims == b.rope_dims && a.page_tokens == b.page_tokens && a.features == b.features;
}

// One distinct request of the plan and what the registry says to it.
struct Lookup {
    const OpRequest* request = nullptr;
    const KernelEntry* kernel = nullptr;
    std::vector<Reason> refused;
    std::vector<const OpRequest*> others;  // that ask the same
};

constexpr std::string_view kLayerPrefix = "blk.";

// "blk.3-5,7.ffn_down.weight": layers that need the same tensor, in runs. Names that are no
// layer's are kept as they are.
std::string tensors_text(const std::vector<const OpRequest*>& requests) {
    std::vector<std::pair<std::string_view, std::vector<int32_t>>> groups;  // name, its layers
    for (const OpRequest* request : requests) {
        std::string_view name = request->tensor;
        const bool is_layers = request->layer >= 0 && name.starts_with(kLayerPrefix);
        if (is_layers) {
            name.remove_prefix(name.find('.', kLayerPrefix.size()));
        }
        const auto group = std::find_if(
            groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == name; });
        std::vector<int32_t>& layers =
            group == groups.end() ? groups.emplace_back(name, std::vector<int32_t>{}).second
                                  : group->second;
        if (is_layers && (layers.empty() || layers.back() != request->layer)) {
            layers.push_back(request->layer);
        }
    }
    std::string text;
    for (const auto& [name, layers] : groups) {
        text += (text.empty() ? "" : ", ") + std::string(layers.empty() ? "" : kLayerPrefix);
        for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
            for (end = begin + 1; end < layers.size() && layers[end] == layers[end - 1] + 1;) {
                ++end;
            }
            text += (begin == 0 ? "" : ",") + std::to_string(layers[begin]);
            text += end - begin > 1 ? "-" + std::to_string(layers[end - 1]) : "";
        }
        text += name;
    }
    return text;
}

// Kernels that a debug option hides would have served, so they alone are named; of the others the
// first few stand for all. Neighbours that say the same ("ID: why") share one "why".
std::string refused_text(const std::vector<Reason>& refused) {
    std::vector<const Reason*> shown;
    for (const Reason& reason : refused) {
        if (reason.code == "kernel.masked") {
            shown.push_back(&reason);
        }
    }
    if (shown.empty()) {
        for (const Reason& reason : refused) {
            shown.push_back(&reason);
        }
    }
    const size_t count = std::min(shown.size(), kRefusedShown);
    const auto why = [&](size_t i) {
        const std::string_view text = shown[i]->text;
        return text.substr(std::min(text.find(": "), text.size()));
    };
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        const std::string& full = shown[i]->text;
        const bool is_shared = i + 1 < count && why(i) == why(i + 1);
        text += is_shared ? full.substr(0, full.size() - why(i).size()) + ", " : full;
        if (!is_shared && i + 1 < count) {
            text += "; ";
        }
    }
    if (shown.size() > count) {
        text += "; and " + std::to_string(shown.size() - count) + " more";
    }
    return text;
}

Reason missing_reason(const Lookup& lookup) {
    std::string text = "no kernel for " + describe(*lookup.request);
    if (!lookup.others.empty()) {
        text += " and " + std::to_string(lookup.others.size()) + " more like it";
        const std::string tensors = tensors_text(lookup.others);
        text += tensors.empty() ? "" : " (" + tensors + ")";
    }
    return {"kernel.missing", text + ": " + refused_text(lookup.refused)};
}

}  // namespace

Resolution resolve(const StepPlan& plan, const Registry& registry) {
    std::vector<Lookup> lookups;
    Resolution result;
    for (const PlannedOp& op : plan.ops) {
        Lookup* known = nullptr;
        for (Lookup& lookup : lookups) {
            if (same_shape(*lookup.request, op.request)) {
                known = &lookup;
                break;
            }
        }
        if (known == nullptr) {
            known = &lookups.emplace_back();
            known->request = &op.request;
            std::variant<const KernelEntry*, Refusal> found = registry.find(op.request);
            if (const auto* kernel = std::get_if<const KernelEntry*>(&found)) {
                known->kernel = *kernel;
            } else {
                known->refused = std::move(std::get<Refusal>(found).reasons);
            }
        } else {
            known->others.push_back(&op.request);
        }
        result.kernels.push_back(known->kernel);
    }
    for (const Lookup& lookup : lookups) {
        if (lookup.kernel == nullptr) {
            result.missing.push_back(missing_reason(lookup));
        }
    }
    return result;
}

std::vector<Reason> ResolvedPlan::missing() const {
    std::vector<Reason> all = resolution.missing;
    for (const Reason& reason : draft_resolution.missing) {
        all.push_back({reason.code, "drafter: " + reason.text});
    }
    return all;
}

ResolvedPlan resolve_mode(const Model& model,
                          const Drafter* drafter,
                          const ModePlan& plan,
                          const Registry& registry) {
    const ResolvesFn resolves = [&](const OpRequest& request) {
        return std::holds_alternative<const KernelEntry*>(registry.find(request));
    };
    ResolvedPlan resolved;
    resolved.step = build_step_plan(model, plan, resolves);
    resolved.resolution = resolve(resolved.step, registry);
    if (plan.spec == 0) {
        return resolved;
    }
    if (drafter == nullptr) {
        throw Error(ErrorKind::InvalidRequest,
                    "drafter.none",
                    "the plan has " + std::to_string(plan.spec) + " drafts and no drafter");
    }
    resolved.draft = build_draft_plan(*drafter, plan, resolves);
    resolved.draft_resolution = resolve(*resolved.draft, registry);
    return resolved;
}

}  // namespace strata
