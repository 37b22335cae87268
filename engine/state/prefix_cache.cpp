#include "engine/state/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "engine/base/assert.h"
#include "engine/plan/mode.h"

namespace strata {

PrefixCache::PrefixCache(uint32_t pages, bool is_enabled)
    : is_enabled_(is_enabled),
      pool_(pages),
      entries_(pages),
      tokens_(static_cast<size_t>(pages) * kPageTokens),
      buckets_(std::bit_ceil(std::max(pages, 1u)), kNone) {}

std::optional<uint32_t> PrefixCache::take() {
    if (auto page = pool_.take()) return page;
    if (idle_oldest_ == kNone) return std::nullopt;
    const uint32_t page = idle_oldest_;
    remove_idle(page);
    unlink_bucket(page);
    return page;  // the cache's reference becomes the caller's
}

void PrefixCache::release(uint32_t page) {
    const uint32_t left = pool_.release(page);
    if (left == 1 && entries_[page].node != kNoNode) push_idle(page);
}

std::optional<uint32_t> PrefixCache::find(Node parent, std::span<const int32_t> tokens) {
    const uint32_t page = lookup(parent, tokens);
    if (page == kNone) return std::nullopt;
    if (pool_.references(page) == 1) remove_idle(page);
    pool_.retain(page);
    return page;
}

std::optional<uint32_t> PrefixCache::peek(Node parent, std::span<const int32_t> tokens) const {
    const uint32_t page = lookup(parent, tokens);
    if (page == kNone) return std::nullopt;
    return page;
}

uint32_t PrefixCache::insert(Node parent, std::span<const int32_t> tokens, uint32_t page) {
    // A parent outside the index (forgotten, or the cache is off) would make the entry unreachable.
    if (!is_enabled_ || parent == kNoNode) return page;
    STRATA_ASSERT(entries_[page].node == kNoNode, "the page is in the index already");
    const uint32_t known = lookup(parent, tokens);
    if (known != kNone) {
        if (pool_.references(known) == 1) remove_idle(known);
        pool_.retain(known);
        release(page);
        return known;
    }
    Entry& entry = entries_[page];
    entry.node = next_node_++;
    entry.parent = parent;
    entry.bucket = bucket_of(parent, tokens);
    entry.bucket_next = buckets_[entry.bucket];
    buckets_[entry.bucket] = page;
    std::copy(
        tokens.begin(), tokens.end(), tokens_.begin() + static_cast<ptrdiff_t>(page) * kPageTokens);
    pool_.retain(page);  // the cache's own
    return page;
}

void PrefixCache::forget(uint32_t page) {
    if (entries_[page].node == kNoNode) return;
    if (pool_.references(page) == 1) remove_idle(page);
    unlink_bucket(page);
    pool_.release(page);
}

bool PrefixCache::is_idle(uint32_t page) const {
    return entries_[page].node != kNoNode && pool_.references(page) == 1;
}

uint32_t PrefixCache::bucket_of(Node parent, std::span<const int32_t> tokens) const {
    // Multiply-xorshift over the tokens (constants of SplitMix64's finaliser).
    uint64_t hash = parent * 0x9E37'79B9'7F4A'7C15u;
    for (const int32_t token : tokens) {
        hash ^= static_cast<uint32_t>(token);
        hash *= 0xBF58'476D'1CE4'E5B9u;
        hash ^= hash >> 29;
    }
    return static_cast<uint32_t>(hash & (buckets_.size() - 1));
}

uint32_t PrefixCache::lookup(Node parent, std::span<const int32_t> tokens) const {
    STRATA_ASSERT(tokens.size() == kPageTokens, "the index holds whole pages");
    if (!is_enabled_) return kNone;
    for (uint32_t page = buckets_[bucket_of(parent, tokens)]; page != kNone;
         page = entries_[page].bucket_next) {
        const auto held = tokens_.begin() + static_cast<ptrdiff_t>(page) * kPageTokens;
        if (entries_[page].parent == parent && std::equal(tokens.begin(), tokens.end(), held)) {
            return page;
        }
    }
    return kNone;
}

void PrefixCache::unlink_bucket(uint32_t page) {
    Entry& entry = entries_[page];
    uint32_t* link = &buckets_[entry.bucket];
    while (*link != page) link = &entries_[*link].bucket_next;
    *link = entry.bucket_next;
    entry.node = kNoNode;
    entry.parent = kNoNode;
    entry.bucket_next = kNone;
}

void PrefixCache::push_idle(uint32_t page) {
    entries_[page].older = idle_newest_;
    entries_[page].newer = kNone;
    (idle_newest_ == kNone ? idle_oldest_ : entries_[idle_newest_].newer) = page;
    idle_newest_ = page;
    ++idle_count_;
}

void PrefixCache::remove_idle(uint32_t page) {
    Entry& entry = entries_[page];
    (entry.older == kNone ? idle_oldest_ : entries_[entry.older].newer) = entry.newer;
    (entry.newer == kNone ? idle_newest_ : entries_[entry.newer].older) = entry.older;
    entry.older = entry.newer = kNone;
    --idle_count_;
}

}  // namespace strata
