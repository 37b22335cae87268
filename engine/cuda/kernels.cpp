// The one explicit table of CUDA kernels. Families are appended here as they are written.
#include "engine/cuda/kernels.h"

namespace strata {

std::vector<KernelEntry> cuda_kernels() {
    return {};
}

}  // namespace strata
