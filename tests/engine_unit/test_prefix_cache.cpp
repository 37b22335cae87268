// Pages, their contents index, and what happens when pages run out.
#include "engine/plan/mode.h"
#include "engine/state/prefix_cache.h"
#include "tests/engine_unit/check.h"

namespace strata::testing {

namespace {

std::vector<int32_t> tokens_of(int32_t first) {
    std::vector<int32_t> out(kPageTokens);
    for (uint32_t i = 0; i < kPageTokens; ++i) out[i] = first + static_cast<int32_t>(i);
    return out;
}

}  // namespace

TEST(pool_counts_references) {
    PagePool pool(2);
    const uint32_t first = pool.take().value();
    const uint32_t second = pool.take().value();
    CHECK(first != second && !pool.take());
    pool.retain(first);
    CHECK(pool.release(first) == 1 && !pool.take());
    CHECK(pool.release(first) == 0 && pool.take() == first);
}

TEST(found_only_behind_the_same_prefix) {
    PrefixCache cache(8, true);
    const uint32_t a = cache.insert(PrefixCache::kRoot, tokens_of(0), cache.take().value());
    const uint32_t b = cache.insert(cache.node(a), tokens_of(100), cache.take().value());
    CHECK(cache.find(PrefixCache::kRoot, tokens_of(0)) == a);
    CHECK(cache.find(cache.node(a), tokens_of(100)) == b);
    CHECK(!cache.find(PrefixCache::kRoot, tokens_of(100)), "same tokens, other prefix");
    CHECK(!cache.find(cache.node(b), tokens_of(100)));
}

TEST(collisions_never_mix_contents) {
    // Hundreds of contents pass through two buckets, so every chain holds collisions.
    PrefixCache cache(2, true);
    for (int32_t first = 0; first < 500; ++first) {
        const uint32_t page = cache.take().value();
        CHECK(cache.insert(PrefixCache::kRoot, tokens_of(first), page) == page);
        cache.release(page);
        for (int32_t other = 0; other < 500; ++other) {
            const bool is_kept = other == first || other == first - 1;
            CHECK(cache.peek(PrefixCache::kRoot, tokens_of(other)).has_value() == is_kept,
                  first,
                  other);
        }
    }
}

TEST(equal_contents_become_one_page) {
    PrefixCache cache(4, true);
    const uint32_t kept = cache.insert(PrefixCache::kRoot, tokens_of(0), cache.take().value());
    const uint32_t twin = cache.take().value();
    CHECK(cache.insert(PrefixCache::kRoot, tokens_of(0), twin) == kept);
    CHECK(cache.used_count() == 1);
    cache.release(kept);
    CHECK(cache.used_count() == 1 && cache.idle_count() == 0, "one user is left");
    cache.release(kept);
    CHECK(cache.used_count() == 0 && cache.idle_count() == 1);
}

TEST(the_least_recently_used_idle_page_goes_first) {
    PrefixCache cache(3, true);
    uint32_t pages[3];
    for (int32_t i = 0; i < 3; ++i) {
        pages[i] = cache.insert(PrefixCache::kRoot, tokens_of(i), cache.take().value());
    }
    CHECK(!cache.take(), "pages in use are never taken");
    for (const uint32_t page : pages) cache.release(page);
    CHECK(cache.find(PrefixCache::kRoot, tokens_of(0)) == pages[0]);
    cache.release(pages[0]);  // used last now
    CHECK(cache.take() == pages[1]);
    CHECK(cache.take() == pages[2]);
    CHECK(cache.peek(PrefixCache::kRoot, tokens_of(0)) == pages[0]);
    CHECK(cache.take() == pages[0] && !cache.take());
}

TEST(a_page_that_was_given_up_is_no_parent) {
    PrefixCache cache(2, true);
    const uint32_t a = cache.insert(PrefixCache::kRoot, tokens_of(0), cache.take().value());
    const PrefixCache::Node old = cache.node(a);
    cache.insert(old, tokens_of(50), cache.take().value());
    cache.release(a);
    CHECK(cache.take() == a);
    cache.insert(PrefixCache::kRoot, tokens_of(7), a);
    CHECK(cache.node(a) != old && !cache.peek(cache.node(a), tokens_of(50)));
}

TEST(forgotten_pages_are_not_found_again) {
    PrefixCache cache(2, true);
    const uint32_t used = cache.insert(PrefixCache::kRoot, tokens_of(0), cache.take().value());
    cache.forget(used);
    CHECK(!cache.peek(PrefixCache::kRoot, tokens_of(0)) && cache.used_count() == 1);
    cache.release(used);
    CHECK(cache.available_count() == 2 && cache.idle_count() == 0);
    const uint32_t idle = cache.insert(PrefixCache::kRoot, tokens_of(1), cache.take().value());
    cache.release(idle);
    cache.forget(idle);
    CHECK(cache.idle_count() == 0 && cache.used_count() == 0);
}

TEST(switched_off_it_keeps_nothing) {
    PrefixCache cache(1, false);
    const uint32_t page = cache.take().value();
    CHECK(cache.insert(PrefixCache::kRoot, tokens_of(0), page) == page);
    CHECK(!cache.find(PrefixCache::kRoot, tokens_of(0)));
    cache.release(page);
    CHECK(cache.idle_count() == 0 && cache.take() == page);
}

}  // namespace strata::testing

CHECK_MAIN
