#include "engine/state/state_checkpoints.h"

#include <algorithm>

namespace strata {

StateCheckpoints::StateCheckpoints(uint32_t first_slot, uint32_t count)
    : first_slot_(first_slot), entries_(count) {}

size_t StateCheckpoints::entry_of(Node node) const {
    if (node == PrefixCache::kNoNode) return entries_.size();
    const auto found = std::find_if(entries_.begin(), entries_.end(), [node](const Entry& entry) {
        return entry.node == node;
    });
    return static_cast<size_t>(found - entries_.begin());
}

std::optional<uint32_t> StateCheckpoints::find(Node node) {
    const size_t index = entry_of(node);
    if (index == entries_.size()) return std::nullopt;
    entries_[index].used = ++clock_;
    return first_slot_ + static_cast<uint32_t>(index);
}

std::optional<uint32_t> StateCheckpoints::add(Node node, Node instead_of) {
    if (entries_.empty() || find(node)) return std::nullopt;
    size_t index = entry_of(instead_of);
    if (index == entries_.size()) {
        const auto oldest =
            std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
                return a.used < b.used;
            });
        index = static_cast<size_t>(oldest - entries_.begin());
    }
    entries_[index] = {node, ++clock_};
    return first_slot_ + static_cast<uint32_t>(index);
}

void StateCheckpoints::clear() {
    std::fill(entries_.begin(), entries_.end(), Entry{});
}

}  // namespace strata
