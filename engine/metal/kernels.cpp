// The one explicit table of Metal kernels. Families are appended here as they are written.
#include "engine/metal/kernels.h"

namespace strata {

std::vector<KernelEntry> metal_kernels() {
    return {};
}

}  // namespace strata
