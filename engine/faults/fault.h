// Faults that a test asks for, as text in STRATA_FAULT, several separated by ";":
//
//     GLOB[:CONDITION[,CONDITION...]]@ACTION
//     matmul*:step>=5,sequences>1@segv     attention*:phase=probe,mode=batch@abort
//
// GLOB names kernels as --without-kernel does.
//
// CONDITION is one of these; all of a fault must hold when the kernel is launched. OP is one of
// = != < <= > >=.
// - step OP NUMBER: counted from READY, 0 before
// - rows OP NUMBER, sequences OP NUMBER: of the step under way
// - layer OP NUMBER: of the operation, -1 where it has none
// - token OP NUMBER: some row of the step has such a token id
// - phase=NAME, mode=NAME: as in the beacon, say probe, prefill, decode; solo, batch
// - plan.FIELD OP VALUE: of the OpRequest, as --without-kernel takes it
//
// ACTION is one of these. "stop" happens once, the others whenever the conditions hold.
// - segv, abort, assert, terminate, ill, exit1, loop, stop (SIGSTOP): within the kernel, on
//   whichever thread computes it
// - nan: the first value that the kernel wrote becomes NaN
// - throw, oom: the launch throws Error{DeviceLost, "device.lost"} or std::bad_alloc
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/registry.h"

namespace strata::faults {

enum class Action : uint8_t {
    Segv,
    Abort,
    Assert,
    Terminate,
    Ill,
    Exit1,
    Loop,
    Stop,
    Nan,
    Throw,
    Oom
};

struct Condition {
    std::string field;
    std::string op;
    std::string text;                 // value of phase and mode
    int64_t number = 0;               // value of the others
    std::vector<KernelMask> request;  // plan.FIELD: one mask that hides what meets it
};

struct Fault {
    std::string text;
    KernelMask kernels;
    std::vector<Condition> conditions;
    Action action = Action::Abort;
    bool has_happened = false;

    // Whether all conditions hold for a launch in the step under way.
    bool is_met(const OpCall& call) const;
};

// Throws Error{InvalidRequest, "config.fault"} naming the part it cannot read.
std::vector<Fault> parse_faults(std::string_view text);

// Those that happen within a kernel; comes back from Stop only, and at once from the others that
// are none.
void happen_within(Action action);

// The one that happens to the output, after the kernel wrote it.
void poison(const OpCall& call);

// Those of the launch. Throws what they stand for.
void happen_at_launch(Action action, const OpCall& call);

}  // namespace strata::faults
