#include "engine/backend/quarantine.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "engine/plan/limits.h"

namespace strata {

namespace {

const ModePlainest* find_axis(std::string_view name) {
    const auto* found = std::find_if(std::begin(kModePlainest),
                                     std::end(kModePlainest),
                                     [&](const ModePlainest& mode) { return mode.axis == name; });
    return found == std::end(kModePlainest) ? nullptr : found;
}

std::optional<uint64_t> read_number(std::string_view text) {
    uint64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace

Quarantine::Quarantine(const std::vector<std::string>& entries) {
    for (const std::string& text : entries) {
        const size_t equals = text.find('=');
        Entry entry{text.substr(0, equals),
                    equals == std::string::npos ? "" : text.substr(equals + 1)};
        if (!find_axis(entry.axis) || (equals != std::string::npos && entry.value.empty())) {
            std::string known;
            for (const ModePlainest& mode : kModePlainest) {
                known += (known.empty() ? "" : ", ") + std::string(mode.axis);
            }
            throw Error(ErrorKind::InvalidRequest,
                        "config.quarantine",
                        "quarantine entry \"" + text +
                            "\" is neither AXIS nor AXIS=VALUE with an axis of " + known);
        }
        entries_.push_back(std::move(entry));
    }
}

bool Quarantine::hides(const Entry& entry, std::string_view axis, std::string_view value) {
    if (entry.axis != axis) return false;
    const std::optional<uint64_t> number = read_number(value);
    if (entry.value.empty()) {
        const std::string_view plainest = find_axis(axis)->value;
        const std::optional<uint64_t> least = read_number(plainest);
        return number && least ? *number > *least : value != plainest;
    }
    const std::optional<uint64_t> hidden = read_number(entry.value);
    return number && hidden ? *number >= *hidden : value == entry.value;
}

bool Quarantine::hides(std::string_view axis, std::string_view value) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return hides(entry, axis, value);
    });
}

Reason Quarantine::reason(std::string_view axis, std::string_view value) const {
    std::string list;
    for (const Entry& entry : entries_) {
        if (!hides(entry, axis, value)) continue;
        list += (list.empty() ? "" : ", ") + entry.axis +
                (entry.value.empty() ? "" : "=" + entry.value);
    }
    return {"mode.quarantined",
            std::string(axis) + " " + std::string(value) + " is in quarantine (" + list + ")"};
}

}  // namespace strata
