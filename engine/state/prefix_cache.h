// Owns the contents index of the KV pages: which full page holds which tokens behind which prefix,
// so that a prompt's known beginning is not computed again. Hands out and takes back all pages of
// the pool, because a page nobody uses may still be worth keeping.
//
// Entries form a chain: an entry is found by the entry before it and by its own kPageTokens tokens,
// both compared in full. The hash only picks a bucket, so a collision costs time and can never
// return a page with other contents. Idle entries (held by the cache alone) are given up in order
// of last use when pages run out. No allocation after construction; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/state/page_pool.h"

namespace strata {

class PrefixCache {
  public:
    // Identifies an entry for as long as the process lives; never reused, unlike page numbers.
    using Node = uint64_t;
    static constexpr Node kNoNode = 0;  // the page is not in the index
    static constexpr Node kRoot = 1;    // parent of a sequence's first page

    // With `is_enabled` false nothing is ever kept or found.
    PrefixCache(uint32_t pages, bool is_enabled);

    // A page for new contents with one reference: a free one, else the one of the idle entry that
    // was used least recently; nullopt when every page is in use.
    std::optional<uint32_t> take();

    // Gives back one reference. Release a sequence's pages last page first, so that the ends of
    // chains age before their beginnings.
    void release(uint32_t page);

    // The page that holds `tokens` [kPageTokens] behind `parent`, with one more reference.
    std::optional<uint32_t> find(Node parent, std::span<const int32_t> tokens);

    // The same without taking a reference: for estimates.
    std::optional<uint32_t> peek(Node parent, std::span<const int32_t> tokens) const;

    // Enters a page whose KV is complete. Returns the page to use from now on: `page`, or the one
    // that already held the same contents, in which case the caller's reference has moved to it.
    uint32_t insert(Node parent, std::span<const int32_t> tokens, uint32_t page);

    // Takes a page out of the index (its KV turned out to be bad); references stay as they are.
    void forget(uint32_t page);

    Node node(uint32_t page) const { return entries_[page].node; }
    bool is_idle(uint32_t page) const;

    bool is_enabled() const { return is_enabled_; }
    uint32_t page_count() const { return pool_.page_count(); }
    uint32_t idle_count() const { return idle_count_; }
    uint32_t used_count() const { return page_count() - pool_.free_count() - idle_count_; }
    uint32_t available_count() const { return pool_.free_count() + idle_count_; }

  private:
    static constexpr uint32_t kNone = 0xFFFF'FFFF;
    struct Entry {
        Node node = kNoNode;
        Node parent = kNoNode;
        uint32_t bucket = 0;
        uint32_t bucket_next = kNone;
        uint32_t older = kNone;  // idle list
        uint32_t newer = kNone;
    };

    uint32_t bucket_of(Node parent, std::span<const int32_t> tokens) const;
    uint32_t lookup(Node parent, std::span<const int32_t> tokens) const;  // page or kNone
    void unlink_bucket(uint32_t page);
    void push_idle(uint32_t page);
    void remove_idle(uint32_t page);

    bool is_enabled_;
    PagePool pool_;
    std::vector<Entry> entries_;     // [pages]
    std::vector<int32_t> tokens_;    // [pages, kPageTokens]
    std::vector<uint32_t> buckets_;  // first page of each bucket; a power of two
    uint32_t idle_oldest_ = kNone;
    uint32_t idle_newest_ = kNone;
    uint32_t idle_count_ = 0;
    Node next_node_ = kRoot + 1;
};

}  // namespace strata
