// Where the parts of a step's routing lie: what Route writes, GroupExperts completes and the other
// operations of experts read. One buffer of 32-bit words for one mixture of experts of one step.
//
// A (row, expert it chose) is a pair. In the order of experts pairs of one expert are neighbours,
// by ascending row; a pair's place is its index in that order.
#pragma once

#include <cstdint>

namespace strata {

struct Routing {
    uint32_t rows = 0;
    uint32_t used = 0;     // experts that each row chooses
    uint32_t experts = 0;  // of the layer

    uint32_t* chosen = nullptr;  // [rows, used] experts of a row, by falling weight
    float* weights = nullptr;    // [rows, used] of the sum
    // By GroupExperts; a group is an expert that some row chose.
    uint32_t* places = nullptr;        // [rows, used]
    uint32_t* row_of = nullptr;        // [rows * used] row of the pair at each place
    uint32_t* group_expert = nullptr;  // [groups], ascending
    uint32_t* group_begin = nullptr;   // [groups + 1] first place of each group, then the end
    uint32_t* group_count = nullptr;   // [1]

    uint32_t groups() const { return *group_count; }
};

// Words of a routing: of each row, and beside the rows.
inline uint32_t routing_row_words(uint32_t used) {
    return 4 * used;
}
inline uint32_t routing_fixed_words(uint32_t experts) {
    return 2 * experts + 2;
}

// A routing of `rows` rows in `words`, routing_row_words(used) * rows +
// routing_fixed_words(experts) of them.
inline Routing routing_view(uint32_t* words, uint32_t rows, uint32_t used, uint32_t experts) {
    const uint64_t pairs = uint64_t{rows} * used;
    Routing view;
    view.rows = rows;
    view.used = used;
    view.experts = experts;
    view.chosen = words;
    view.weights = reinterpret_cast<float*>(words + pairs);
    view.places = words + 2 * pairs;
    view.row_of = words + 3 * pairs;
    view.group_expert = words + 4 * pairs;
    view.group_begin = view.group_expert + experts;
    view.group_count = view.group_begin + experts + 1;
    return view;
}

}  // namespace strata
