// The table of the CPU backend's kernels.
#pragma once

#include <vector>

#include "engine/backend/kernel.h"
#include "engine/base/cpu_features.h"

namespace strata {

// Every kernel that a processor with `features` can run, in order of preference: AVX-512 VNNI,
// AVX2, NEON, portable. Kernels of an instruction set that is absent are not in the table, nor are
// those of another processor family in the program at all.
std::vector<KernelEntry> cpu_kernels(const CpuFeatures& features);

// The same table for reports and plans about any processor: entries whose code is not compiled into
// this program are listed without a launcher (KernelEntry::run is null).
std::vector<KernelEntry> cpu_kernels_for_report(const CpuFeatures& features);

}  // namespace strata
