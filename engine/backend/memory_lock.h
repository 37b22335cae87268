// Keeps planned memory from being paged out (mlock): what it would count against the process's
// limit, and the locking itself, all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend/weight_plan.h"
#include "engine/backend/weights.h"
#include "engine/base/error.h"

namespace strata {

struct LockRange {
    std::byte* data = nullptr;  // page-aligned
    uint64_t bytes = 0;
};

// Whole pages of one mapped file that hold tensors read in place; pages that two tensors share
// come once. Offsets are from the start of the part (gguf::File::part_bytes), which is mapped at a
// page. `file` is an index of TensorFiles; none where it is not there.
struct FilePages {
    uint32_t part = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};
std::vector<FilePages> mapped_file_pages(const TensorFiles& files,
                                         const WeightPlan& weights,
                                         uint32_t file);

// Bytes of the whole pages that `bytes` of page-aligned memory lie in.
uint64_t page_bytes(uint64_t bytes);

// {"mem.memlock", ...} where `need` bytes are more than `limit`, as memlock_limit_bytes() says it:
// both numbers and how to raise the limit.
std::optional<Reason> memlock_shortage(uint64_t need, uint64_t limit);

// Locks all ranges, which makes every page of them resident, and reports phase "lock" as it goes.
// Where the system refuses one, all are unlocked again and {"mem.memlock", why} is returned.
std::optional<Reason> lock_memory(const std::vector<LockRange>& ranges,
                                  const LoadProgress& progress);

}  // namespace strata
