// How the rows of a step stand to the recurrent states of their sequences. Plain data: files
// compiled for one instruction set include it too.
#pragma once

#include <stdint.h>

namespace strata {

// Neighbouring rows of one sequence, in ascending position without gaps.
//
// A state takes in the rows of a run but the last few, which are logged instead because they may
// turn out to be drafts that are refused. The next run says by its position how many of them stand,
// and those are taken in then, by the same arithmetic.
struct StateRun {
    uint32_t slot;       // of the states
    uint32_t row;        // first row of the step
    uint32_t rows;       // at least 1
    uint32_t position;   // of the first row; at 0 the state begins as zeros, whatever it holds
    uint32_t replay;     // logged rows that the state takes in before the first row
    uint32_t commit;     // rows that the state takes in; the others are logged
    uint32_t log_read;   // 0 or 1: which log holds the rows to replay
    uint32_t log_write;  // the other one
};

// The whole state of slot `from` becomes that of slot `to`.
struct StateCopy {
    uint32_t from;
    uint32_t to;
};

}  // namespace strata
