// The stream family of engine/cpu compiled for one instruction set; see cmake/isa.cmake for the
// rule that keeps its code out of the rest of the program.
#include "engine/cpu/lanes_portable.h"
#include "engine/cpu/stream_body.h"

namespace strata::cpu {

const StreamOps& stream_ops_portable() {
    return kStreamOps;
}

}  // namespace strata::cpu
