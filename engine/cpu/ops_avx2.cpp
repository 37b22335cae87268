// The kernels of engine/cpu compiled for one instruction set; see cmake/isa.cmake for the rule
// that keeps its code out of the rest of the program.
#include "engine/cpu/lanes_avx2.h"
#include "engine/cpu/ops_body.h"

namespace strata::cpu {

const IsaOps& isa_ops_avx2() {
    return kIsaOps;
}

}  // namespace strata::cpu
