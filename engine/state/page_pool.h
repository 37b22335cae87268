// Owns which KV pages are in use: a reference count per page and a list of free pages. A page with
// a count of zero is on the free list and nowhere else. It knows nothing of what pages hold
// (prefix_cache.h) and never touches their memory. No allocation after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace strata {

class PagePool {
  public:
    explicit PagePool(uint32_t pages);

    // A free page, now with one reference; nullopt when none is free.
    std::optional<uint32_t> take();

    // One more reference to a page that has at least one.
    void retain(uint32_t page);

    // One reference less; returns how many are left. At zero the page is free.
    uint32_t release(uint32_t page);

    uint32_t references(uint32_t page) const;
    uint32_t page_count() const { return static_cast<uint32_t>(references_.size()); }
    uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }

  private:
    std::vector<uint32_t> references_;  // [pages]
    std::vector<uint32_t> free_;        // stack; capacity = pages
};

}  // namespace strata
