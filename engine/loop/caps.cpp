#include "engine/loop/caps.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/loop/convert.h"
#include "engine/loop/serving_modes.h"

namespace strata {

namespace {

constexpr size_t kReasonOverheadBytes = 32;  // names of its fields and lengths
constexpr size_t kRefusalBytes = kCapsBytesMax / 2;
constexpr size_t kNoteBytes = kCapsBytesMax / 16;

size_t reason_bytes(const Reason& reason) {
    return reason.code.size() + reason.text.size() + kReasonOverheadBytes;
}

size_t encoded_bytes(const protocol::Caps& caps) {
    protocol::Buffer bytes;
    encode(caps, bytes);
    return bytes.size();
}

// The reasons of a CAPS, each once.
class ReasonTable {
  public:
    explicit ReasonTable(std::vector<protocol::Reason>& reasons) : reasons_(reasons) {}

    // Bytes that the table grows by when these are added.
    size_t cost(const std::vector<Reason>& reasons) const {
        size_t bytes = 0;
        for (const Reason& reason : reasons) {
            bytes += index_.contains({reason.code, reason.text}) ? 0 : reason_bytes(reason);
        }
        return bytes;
    }

    uint32_t add(const Reason& reason) {
        const auto [at, is_new] =
            index_.try_emplace({reason.code, reason.text}, static_cast<uint32_t>(reasons_.size()));
        if (is_new) reasons_.push_back({reason.code, reason.text});
        return at->second;
    }

  private:
    std::vector<protocol::Reason>& reasons_;
    std::map<std::pair<std::string, std::string>, uint32_t> index_;
};

std::vector<Reason> all_reasons(const Configuration& configuration) {
    std::vector<Reason> reasons = configuration.missing;
    for (const Shortfall& shortfall : configuration.shortfalls) reasons.push_back(shortfall.reason);
    return reasons;
}

// The serving modes of a CAPS, each once.
class ServingTable {
  public:
    explicit ServingTable(std::vector<protocol::ServingMode>& modes) : modes_(modes) {}

    uint32_t add(const ServingMode& mode) {
        protocol::ServingMode wire = to_wire(mode);
        for (uint32_t i = 0; i < modes_.size(); ++i) {
            if (modes_[i].drafts == wire.drafts && modes_[i].features == wire.features) return i;
        }
        modes_.push_back(std::move(wire));
        return static_cast<uint32_t>(modes_.size() - 1);
    }

  private:
    std::vector<protocol::ServingMode>& modes_;
};

protocol::Configuration to_wire(const Configuration& configuration,
                                const std::vector<uint32_t>& serving,
                                ReasonTable& table) {
    protocol::Configuration out;
    out.plan = to_wire(configuration.plan);
    for (const Reason& reason : configuration.missing) out.missing.push_back(table.add(reason));
    for (const Shortfall& shortfall : configuration.shortfalls) {
        out.shortfalls.push_back({shortfall.axis, table.add(shortfall.reason)});
    }
    out.memory = to_wire(configuration.memory);
    out.serving = serving;
    return out;
}

// Bytes of a configuration without its reasons; an index takes at most five.
size_t plan_bytes(const Configuration& configuration, size_t empty_bytes) {
    protocol::Caps caps;
    caps.configurations.push_back(
        {to_wire(configuration.plan), {}, {}, to_wire(configuration.memory), {}});
    size_t bytes = encoded_bytes(caps) - empty_bytes + 5 * configuration.missing.size();
    for (const Shortfall& shortfall : configuration.shortfalls) {
        bytes += shortfall.axis.size() + kReasonOverheadBytes;
    }
    return bytes + kReasonOverheadBytes;
}

// Indexes in the order in which they are kept.
std::vector<size_t> by_worth(const Negotiation& negotiation) {
    std::vector<size_t> order = {0};
    if (negotiation.plainest != 0) order.push_back(negotiation.plainest);
    for (const bool can_run : {true, false}) {
        for (size_t i = 1; i < negotiation.configurations.size(); ++i) {
            const bool is_next = negotiation.configurations[i].missing.empty() == can_run;
            if (is_next && i != negotiation.plainest) order.push_back(i);
        }
    }
    return order;
}

}  // namespace

std::vector<Reason> idle_mask_notes(const Registry& registry, const std::string& backend) {
    std::vector<Reason> notes;
    for (const KernelMask& mask : registry.idle_masks()) {
        notes.push_back({"config.without_kernel",
                         "--without-kernel '" + mask.text() + "' hides nothing: no kernel of the " +
                             "backend " + backend + " has such a name; --describe lists them"});
    }
    return notes;
}

std::vector<Reason> bounded(std::vector<Reason> reasons, size_t bytes_max) {
    size_t bytes = 0;
    for (size_t i = 0; i < reasons.size(); ++i) {
        bytes += reason_bytes(reasons[i]);
        if (bytes <= bytes_max) continue;
        const size_t left_out = reasons.size() - i;
        reasons.resize(i);
        reasons.push_back(
            {"caps.shortened",
             "and " + std::to_string(left_out) + " more reasons than this report can hold"});
        break;
    }
    return reasons;
}

void add_configurations(protocol::Caps& caps, const Negotiation& negotiation, size_t bytes_max) {
    const size_t empty_bytes = encoded_bytes({});
    // Few, one for each depth of drafts, so they are all there whatever is left out.
    ServingTable modes(caps.serving);
    std::vector<std::vector<uint32_t>> serving;
    for (const Configuration& configuration : negotiation.configurations) {
        std::vector<uint32_t>& indexes = serving.emplace_back();
        for (const ServingMode& mode : serving_modes(configuration.plan)) {
            indexes.push_back(modes.add(mode));
        }
    }
    size_t left = bytes_max - std::min(bytes_max, encoded_bytes(caps) + kReasonOverheadBytes);
    const size_t always_bytes = left / 4;  // of the reasons of one that is never left out
    ReasonTable table(caps.reasons);
    std::map<size_t, protocol::Configuration> kept;
    for (const size_t i : by_worth(negotiation)) {
        Configuration configuration = negotiation.configurations[i];
        const bool is_always = i == 0 || i == negotiation.plainest;
        if (is_always) configuration.missing = bounded(configuration.missing, always_bytes);
        const size_t bytes =
            plan_bytes(configuration, empty_bytes) + table.cost(all_reasons(configuration));
        if (bytes > left && !is_always) break;
        left -= std::min(left, bytes);
        kept.emplace(i, to_wire(configuration, serving[i], table));
    }
    for (auto& [index, configuration] : kept) {
        caps.configurations.push_back(std::move(configuration));
    }
}

std::vector<Reason> CapsAnswer::in_the_way_of(const ModePlan& plan) const {
    for (const Configuration& configuration : unready) {
        if (configuration.plan == plan) return bounded(configuration.missing, kRefusalBytes);
    }
    return {};
}

CapsAnswer make_caps(const Backend& backend,
                     const Model& model,
                     const WantedModes& want,
                     const Registry& registry,
                     const std::vector<std::string>& quarantine) {
    const DeviceFacts device = backend.device_facts();
    CapsAnswer answer;
    protocol::Caps& caps = answer.caps;
    caps.host = to_wire(backend.host());
    caps.model = to_wire(model.facts());
    caps.device = to_wire(device);
    for (const Reason& note : bounded(idle_mask_notes(registry, backend.name()), kNoteBytes)) {
        caps.notes.push_back({note.code, note.text});
    }
    Negotiation negotiation =
        negotiate({model, registry, want, backend.host(), device}, quarantine);
    caps.kv_types = negotiation.kv_types;
    if (!negotiation.best) {
        answer.refusal = bounded(negotiation.refusal(), kRefusalBytes);
    }
    add_configurations(caps, negotiation, kCapsBytesMax);
    for (Configuration& configuration : negotiation.configurations) {
        if (!configuration.missing.empty()) answer.unready.push_back(std::move(configuration));
    }
    return answer;
}

}  // namespace strata
