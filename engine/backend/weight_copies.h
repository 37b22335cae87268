// Copies of the weights that kernels read as the file has them, for a plan without mmap: in memory
// of their own, so that no step waits for the file's pages. Packed weights need no second copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/page_buffer.h"
#include "engine/backend/weight_plan.h"
#include "engine/backend/weights.h"

namespace strata {

// Bytes that the copies of all tensors read in place take.
uint64_t weight_copies_bytes(const TensorFiles& files, const WeightPlan& plan);

class WeightCopies {
  public:
    WeightCopies() = default;

    // Copies every tensor that `plan` reads in place, reports phase "copy" as it goes, and gives
    // the file's pages back. Throws Error "mem.allocate".
    WeightCopies(const TensorFiles& files, const WeightPlan& plan, const LoadProgress& progress);

    // `view` of rows of `slice` in the mapped file, with its bytes in the copy instead; unchanged
    // where the tensor has none.
    WeightView redirect(const TensorFiles& files, const TensorSlice& slice, WeightView view) const;

    const PageBuffer& buffer() const { return buffer_; }

  private:
    PageBuffer buffer_;
    // Per file and tensor of it, or null.
    std::array<std::vector<const std::byte*>, kFileCount> copy_of_tensor_;
};

}  // namespace strata
