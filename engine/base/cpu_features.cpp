#include "engine/base/cpu_features.h"

#include <cstdint>

#include "engine/base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace strata {
namespace {

#if defined(__x86_64__)

struct Leaf {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(uint32_t leaf, uint32_t subleaf = 0) {
    Leaf out;
    __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
    return out;
}

bool has_bit(uint32_t word, int bit) {
    return ((word >> bit) & 1u) != 0;
}

// XCR0: which register files the operating system saves at a context switch.
uint64_t enabled_state() {
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

std::string brand() {
    if (cpuid(0x80000000u).eax < 0x80000004u) return "unknown";
    std::string name;
    for (uint32_t leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf) {
        const Leaf part = cpuid(leaf);
        for (const uint32_t word : {part.eax, part.ebx, part.ecx, part.edx}) {
            for (int shift = 0; shift < 32; shift += 8) {
                const char c = static_cast<char>((word >> shift) & 0xff);
                if (c >= ' ' && c <= '~') name.push_back(c);
            }
        }
    }
    const size_t begin = name.find_first_not_of(' ');
    if (begin == std::string::npos) return "unknown";
    return name.substr(begin, name.find_last_not_of(' ') + 1 - begin);
}

CpuFeatures detect() {
    CpuFeatures found;
    found.processor = brand();
    const Leaf basic = cpuid(1);
    const bool has_osxsave = has_bit(basic.ecx, 27);
    if (!has_osxsave || cpuid(0).eax < 7) return found;
    const Leaf extended = cpuid(7);
    constexpr uint64_t kYmm = 0x06;  // SSE and AVX state
    constexpr uint64_t kZmm = 0xe6;  // also opmask, upper ZMM halves, ZMM 16 to 31
    const uint64_t state = enabled_state();
    const bool has_fma = has_bit(basic.ecx, 12);
    const bool has_f16c = has_bit(basic.ecx, 29);
    const bool has_avx2 = has_bit(basic.ecx, 28) && has_bit(extended.ebx, 5);
    found.avx2 = (state & kYmm) == kYmm && has_avx2 && has_fma && has_f16c;
    const bool has_foundation = has_bit(extended.ebx, 16) && has_bit(extended.ebx, 17);  // F, DQ
    const bool has_bytes = has_bit(extended.ebx, 30) && has_bit(extended.ebx, 31);       // BW, VL
    const bool has_vnni = has_bit(extended.ecx, 11);
    found.avx512vnni =
        found.avx2 && (state & kZmm) == kZmm && has_foundation && has_bytes && has_vnni;
    return found;
}

#elif defined(__aarch64__)

CpuFeatures detect() {
    CpuFeatures found;
    found.processor = "aarch64";
#if defined(__APPLE__)
    found.neon = true;  // every Apple processor that runs macOS 11 has both extensions
#elif defined(__linux__)
    // Bits of AT_HWCAP (asm/hwcap.h): half-precision arithmetic on vectors, dot product.
    constexpr unsigned long kAsimdHalf = 1ul << 10;
    constexpr unsigned long kAsimdDot = 1ul << 20;
    const unsigned long hwcap = getauxval(AT_HWCAP);
    found.neon = (hwcap & kAsimdHalf) != 0 && (hwcap & kAsimdDot) != 0;
#endif
    return found;
}

#else

CpuFeatures detect() {
    CpuFeatures found;
    found.processor = "unknown";
    return found;
}

#endif

[[noreturn]] void refuse_isa(std::string_view isa, const std::string& known) {
    throw Error(ErrorKind::InvalidRequest,
                "config.isa",
                "isa '" + std::string(isa) + "' is not one of " + known);
}

}  // namespace

CpuFeatures detect_cpu() {
    return detect();
}

CpuFeatures limit_isa(const CpuFeatures& detected, std::string_view isa) {
    CpuFeatures limited = detected;
    if (isa.empty() || isa == "auto") return limited;
    const auto require = [&](bool is_present) {
        if (is_present) return;
        throw Error(ErrorKind::Unsupported,
                    "config.isa",
                    "this processor (" + detected.processor + ") cannot run " + std::string(isa));
    };
    if (isa == "avx512vnni") {
        require(detected.avx512vnni);
    } else if (isa == "avx2") {
        require(detected.avx2);
        limited.avx512vnni = false;
    } else if (isa == "neon") {
        require(detected.neon);
    } else if (isa == "portable") {
        limited.avx512vnni = limited.avx2 = limited.neon = false;
    } else {
        refuse_isa(isa, "auto, avx512vnni, avx2, neon, portable");
    }
    return limited;
}

CpuFeatures isa_features(std::string_view isa) {
    CpuFeatures features;
    if (isa == "avx512vnni") {
        features.avx512vnni = features.avx2 = true;
    } else if (isa == "avx2") {
        features.avx2 = true;
    } else if (isa == "neon") {
        features.neon = true;
    } else if (isa != "portable") {
        refuse_isa(isa, "avx512vnni, avx2, neon, portable");
    }
    return features;
}

std::string_view best_isa(const CpuFeatures& features) {
    return features.avx512vnni ? "avx512vnni"
           : features.avx2     ? "avx2"
           : features.neon     ? "neon"
                               : "portable";
}

}  // namespace strata
