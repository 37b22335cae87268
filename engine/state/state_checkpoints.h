// Owns which prefixes have a checkpoint of the recurrent state of a sequence behind them, and in
// which slot of the runtime it lies. A prefix is named by the prefix cache's node of its last page;
// nodes are never used twice, so a checkpoint whose pages are gone is not found any more and ages
// out. It knows nothing of what the slots hold. No allocation after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/state/prefix_cache.h"

namespace strata {

class StateCheckpoints {
  public:
    using Node = PrefixCache::Node;

    // Slots [first_slot, first_slot + count).
    StateCheckpoints(uint32_t first_slot, uint32_t count);

    uint32_t count() const { return static_cast<uint32_t>(entries_.size()); }
    bool has(Node node) const { return entry_of(node) != entries_.size(); }

    // The slot with the state behind `node`; it becomes the one used last.
    std::optional<uint32_t> find(Node node);

    // The slot to write the state behind `node` to, known from now on: the one of `instead_of`
    // where that is given and still there, else the one that was used least recently. nullopt where
    // `node` has a checkpoint already, or there are no slots.
    std::optional<uint32_t> add(Node node, Node instead_of = PrefixCache::kNoNode);

    // Drops all: what the slots hold is not known.
    void clear();

  private:
    struct Entry {
        Node node = PrefixCache::kNoNode;
        uint64_t used = 0;
    };

    size_t entry_of(Node node) const;

    uint32_t first_slot_;
    std::vector<Entry> entries_;  // a few dozen at most: searched in order
    uint64_t clock_ = 0;
};

}  // namespace strata
