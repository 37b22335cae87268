// Which weights the steps of a mode read, in which layout: packed for their kernels or as mapped
// from their file. The model's step and the drafter's share what both read. Computed from headers
// alone; used for memory figures before loading and by the loader.
#pragma once

#include <array>
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
    uint64_t expert_bytes = 0;  // of one expert; of all where there is one matrix
};

// A norm, bias or rope table as f32, at `offset` elements of the vector buffer.
struct VectorWeight {
    TensorSlice slice;
    uint64_t offset = 0;
};

// Of each operation of one step plan: its weights in a WeightPlan, or kNoTensor.
struct OpWeights {
    std::vector<uint32_t> packed;  // index into WeightPlan::packed
    std::vector<uint32_t> vector;  // index into WeightPlan::vectors
    std::vector<uint32_t> vector2;
};

struct WeightBytes {
    uint64_t packed = 0;    // of the arena
    uint64_t elements = 0;  // of the vector buffer, f32
    uint64_t mapped = 0;    // of the tensors read in place
};

struct WeightPlan {
    std::vector<PackedWeight> packed;
    std::vector<VectorWeight> vectors;
    OpWeights step;
    OpWeights draft;  // empty without a drafter's step
    // Per file and tensor of it: read in place by some operation.
    std::array<std::vector<bool>, kFileCount> is_mapped;
    // Of which steps read a few rows from the file (reads_on_demand): never packed, copied, locked
    // or read ahead as a whole, and not part of mapped_bytes.
    std::vector<TensorSlice> on_demand;
    uint64_t on_demand_bytes = 0;
    uint64_t packed_bytes = 0;         // of the whole arena
    uint64_t packed_source_bytes = 0;  // read from the files to fill it
    uint64_t vector_elements = 0;
    uint64_t mapped_bytes = 0;  // of the tensors read in place
    WeightBytes drafters;       // of these what only the drafter's step reads
};

// Counts the weight of `op`, where it has one, as one that no kernel wants packed.
void add_unpacked(WeightPlan& plan, const TensorFiles& files, const PlannedOp& op);

// Of a complete resolution; `drafter` as for resolve_mode.
WeightPlan plan_weights(const Model& model, const Drafter* drafter, const ResolvedPlan& resolved);

}  // namespace strata
