// What `--describe` prints: facts of a backend, its kernels and what they serve, as JSON.
#pragma once

#include <string>
#include <vector>

#include "engine/loop/foreign_backend.h"

namespace strata {

// Build, device, limits, kernels, operations and modes of one backend.
std::string describe(const Backend& backend, const Registry& registry, const std::string& build);

// Limits, and kernels, operations and modes of every table, behind `without_kernels`. Nothing in it
// depends on the machine or the build. Throws Error "config.without_kernel".
std::string describe_all(const std::vector<KernelTable>& tables,
                         const std::vector<std::string>& without_kernels);

}  // namespace strata
