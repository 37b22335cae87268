// Where the parts of a sequence's recurrent state lie: the layout that operations with state share
// with the plan that sizes it. All f32.
//
// ShortConv keeps the inputs of the last conv_ring_rows() positions, [ring rows, n]; position p is
// row p modulo the ring rows. Taking rows back needs nothing: they are written over. NgramRows
// keeps the last token ids in a ring of the same kind, words [ring rows].
//
// DeltaRule keeps, for each of `heads` value heads, the matrix S [key, value] of head_dim x
// head_dim in blocks of kStateColumns values, [heads, head_dim / kStateColumns, head_dim,
// kStateColumns]; then two logs of `undo` rows. A logged row is what one token adds to S: the keys
// [kv_heads, head_dim], the deltas [heads, head_dim] and the decays [heads].
#pragma once

#include <cstdint>

#include "engine/plan/op.h"

namespace strata {

inline constexpr uint32_t kStateColumns = 16;

// Positions between neighbouring taps.
inline uint32_t conv_dilation(const OpRequest& request) {
    return (request.features & kFeatureDilated) != 0 ? request.dilation : 1;
}

inline uint32_t conv_ring_rows(const OpRequest& request) {
    return (request.taps - 1) * conv_dilation(request) + request.undo;
}

inline uint32_t ngram_ring_rows(const OpRequest& request) {
    return request.taps - 1 + request.undo;
}

// Of one logged row of a DeltaRule.
inline uint64_t delta_log_floats(const OpRequest& request) {
    return uint64_t{request.kv_heads + request.heads} * request.head_dim + request.heads;
}

// Floats of an operation's part of one sequence's state, a multiple of 16; 0 for operations
// without state.
inline uint64_t op_state_floats(const OpRequest& request) {
    uint64_t floats = 0;
    if (request.kind == OpKind::ShortConv) {
        floats = uint64_t{conv_ring_rows(request)} * request.n;
    } else if (request.kind == OpKind::NgramRows) {
        floats = ngram_ring_rows(request);
    } else if (request.kind == OpKind::DeltaRule) {
        floats = uint64_t{request.heads} * request.head_dim * request.head_dim +
                 2ull * request.undo * delta_log_floats(request);
    }
    return (floats + 15) / 16 * 16;
}

}  // namespace strata
