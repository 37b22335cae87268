#include "engine/state/page_pool.h"

#include "engine/base/assert.h"

namespace strata {

PagePool::PagePool(uint32_t pages) : references_(pages, 0) {
    free_.reserve(pages);
    // Lowest page on top, so that small loads stay in few memory pages.
    for (uint32_t page = pages; page > 0; --page) free_.push_back(page - 1);
}

std::optional<uint32_t> PagePool::take() {
    if (free_.empty()) return std::nullopt;
    const uint32_t page = free_.back();
    free_.pop_back();
    STRATA_ASSERT(references_[page] == 0, "a free page has references");
    references_[page] = 1;
    return page;
}

void PagePool::retain(uint32_t page) {
    STRATA_ASSERT(page < references_.size() && references_[page] > 0, "retain of a free page");
    ++references_[page];
}

uint32_t PagePool::release(uint32_t page) {
    STRATA_ASSERT(page < references_.size() && references_[page] > 0, "release of a free page");
    const uint32_t left = --references_[page];
    if (left == 0) free_.push_back(page);
    return left;
}

uint32_t PagePool::references(uint32_t page) const {
    STRATA_ASSERT(page < references_.size(), "no such page");
    return references_[page];
}

}  // namespace strata
