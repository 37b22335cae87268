// Which weights a step plan reads, in which layout: packed for their kernels or as mapped from the
// file. Computed from headers alone; used for memory figures before loading and by the loader.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/resolve.h"

namespace strata {

// One weight in the layout of one packing, at `offset` of the packed arena.
struct PackedWeight {
    TensorSlice slice;
    const Packing* packing = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// A norm, bias or rope table as f32, at `offset` elements of the vector buffer.
struct VectorWeight {
    TensorSlice slice;
    uint64_t offset = 0;
};

struct WeightPlan {
    std::vector<PackedWeight> packed;
    std::vector<VectorWeight> vectors;
    std::vector<uint32_t> packed_of_op;  // per operation: index into `packed` or kNoTensor
    std::vector<uint32_t> vector_of_op;  // per operation: index into `vectors` or kNoTensor
    std::vector<bool> is_mapped;         // per tensor of the file: read in place by some operation
    uint64_t packed_bytes = 0;           // of the whole arena
    uint64_t packed_source_bytes = 0;    // read from the file to fill it
    uint64_t vector_elements = 0;
    uint64_t mapped_bytes = 0;  // of the tensors read in place
};

// `resolution` must be complete.
WeightPlan plan_weights(const Model& model, const StepPlan& step, const Resolution& resolution);

}  // namespace strata
