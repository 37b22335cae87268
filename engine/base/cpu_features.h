// Which instruction sets this processor and operating system can run, read once at start. Kernel
// tables are built from it, so code for an absent instruction set is never in a table.
#pragma once

#include <string>
#include <string_view>

namespace strata {

struct CpuFeatures {
    bool avx2 = false;        // AVX2, FMA and F16C, and the system saves YMM registers
    bool avx512vnni = false;  // also AVX-512 F, BW, VL, DQ and VNNI, and ZMM registers are saved
    bool neon = false;        // Armv8.2 dot product and half precision
    std::string processor;    // name for reports, "unknown" where the system gives none
};

// Asks the processor (cpuid and xgetbv on x86, the kernel on Arm).
CpuFeatures detect_cpu();

// `detected` without everything above `isa`: "auto" or "" (no limit), "avx512vnni", "avx2", "neon",
// "portable". Throws Error{InvalidRequest, "config.isa"} for another name and
// Error{Unsupported, "config.isa"} for one that this processor cannot run.
CpuFeatures limit_isa(const CpuFeatures& detected, std::string_view isa);

// What a processor has whose best instruction set is `isa` ("avx512vnni", "avx2", "neon",
// "portable"), whether or not it is this one. Throws Error{InvalidRequest, "config.isa"}.
CpuFeatures isa_features(std::string_view isa);

// The best of them, in the words of isa_features().
std::string_view best_isa(const CpuFeatures& features);

// All names that isa_features() knows, plainest first.
inline constexpr std::string_view kIsaNames[] = {"portable", "avx2", "avx512vnni", "neon"};

}  // namespace strata
