// How a model's rope reaches positions beyond those of its first training: not at all, linearly or
// by YaRN. Read from the metadata rope.scaling.*; frequencies and magnitude are fixed at load, so a
// kernel knows of neither.
#pragma once

#include <cstdint>
#include <vector>

namespace strata {

class MetadataReader;

struct RopeScaling {
    double scale = 1;  // of all frequencies (linear) or of the low ones (YaRN): 1 / factor
    // YaRN: the share of its own frequency that a high one keeps, and the pairs of elements between
    // which high turns into low; 0: every frequency is scaled.
    double kept = 0;
    double ramp_begin = 0;
    double ramp_end = 0;
    double magnitude = 1;  // that rotated elements are multiplied by
};

struct RopeSizes {
    uint32_t dims = 0;  // rotated elements of each head, even
    double base = 0;
    uint32_t context = 0;  // what original_context_length is where the file does not say
};

// Throws Error "model.metadata" that names the key: InvalidRequest for values out of range,
// Unsupported for other kinds of scaling and for formulas of other models.
RopeScaling read_rope_scaling(const MetadataReader& meta, const RopeSizes& sizes);

// base^(-2i / dims) as scaled, [dims / 2]. Source of YaRN's formula: the paper (arXiv 2309.00071)
// as transformers and llama.cpp compute it, whole pairs at the ends of the ramp.
std::vector<double> scaled_rope_frequencies(const RopeScaling& scaling, uint32_t dims, double base);

}  // namespace strata
