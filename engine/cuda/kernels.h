// The table of the CUDA backend's kernels. It compiles on every host, so that plans and reports can
// speak of a machine that is not here.
#pragma once

#include <vector>

#include "engine/backend/kernel.h"

namespace strata {

// In order of preference. Empty: no CUDA kernel is written yet, so nothing runs on this backend,
// and plans for it list every request of a model as missing. On a host without the device entries
// will have no launcher (KernelEntry::run is null).
std::vector<KernelEntry> cuda_kernels();

}  // namespace strata
