// What the op families of this folder share to fill the kernel table: one function per family,
// which appends its entries for one instruction set.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/base/assert.h"
#include "engine/cpu/isa_ops.h"

namespace strata::cpu {

enum class Isa : uint8_t { Avx512Vnni, Avx2, Neon, Portable };

void append_embed(std::vector<KernelEntry>& table);
void append_gather_rows(std::vector<KernelEntry>& table);
void append_concat(std::vector<KernelEntry>& table);
void append_slice(std::vector<KernelEntry>& table);
void append_delta_gates(std::vector<KernelEntry>& table);
void append_routing(std::vector<KernelEntry>& table);     // Route, GroupExperts
void append_expert_sum(std::vector<KernelEntry>& table);  // and GatedAdd
void append_scale(std::vector<KernelEntry>& table);
void append_norm(Isa isa, std::vector<KernelEntry>& table);  // and the fused RmsNormQuantize
void append_quantize(Isa isa, std::vector<KernelEntry>& table);
void append_matmul_i8(Isa isa, std::vector<KernelEntry>& table);
void append_matmul_f32(Isa isa, std::vector<KernelEntry>& table);
void append_expert_matmul(Isa isa, std::vector<KernelEntry>& table);
void append_rope(Isa isa, std::vector<KernelEntry>& table);
void append_kv_append(Isa isa, std::vector<KernelEntry>& table);
void append_attention(Isa isa, std::vector<KernelEntry>& table);
void append_elementwise(Isa isa, std::vector<KernelEntry>& table);  // SwiGlu, Add
void append_index(Isa isa, std::vector<KernelEntry>& table);        // IndexAppend to SelectTokens
// Silu, StreamMix, StreamAdd, StreamScores, StreamScale
void append_streams(Isa isa, std::vector<KernelEntry>& table);
void append_stream_spread(std::vector<KernelEntry>& table);
void append_tables(std::vector<KernelEntry>& table);  // NgramRows, TableRows
// ShortConv, DeltaRule, L2Norm, SigmoidGate
void append_recurrent(Isa isa, std::vector<KernelEntry>& table);

// Whether the code of an instruction set is compiled into this program.
constexpr bool is_compiled([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
    if (isa == Isa::Avx512Vnni || isa == Isa::Avx2) return true;
#elif defined(__aarch64__)
    if (isa == Isa::Neon) return true;
#endif
    return isa == Isa::Portable;
}

template <Isa kIsa>
const IsaOps& isa_ops() {
    if constexpr (!is_compiled(kIsa))
        assert_failed(__FILE__, __LINE__, "isa_ops", "entries of absent code have no launcher");
    else if constexpr (kIsa == Isa::Avx512Vnni)
        return isa_ops_avx512();
    else if constexpr (kIsa == Isa::Avx2)
        return isa_ops_avx2();
    else if constexpr (kIsa == Isa::Neon)
        return isa_ops_neon();
    else
        return isa_ops_portable();
}

constexpr std::string_view isa_name(Isa isa) {
    constexpr std::string_view kNames[] = {"avx512vnni", "avx2", "neon", "portable"};
    return kNames[static_cast<size_t>(isa)];
}

// Calls fn with the instruction set as a compile-time constant: launchers are plain function
// pointers, so each one is compiled for its instruction set. Entries are made for all of them, also
// those of another processor family: reports speak of these, and kernels.cpp takes their launchers
// away.
template <class Fn>
void with_isa(Isa isa, Fn&& fn) {
    switch (isa) {
        case Isa::Avx512Vnni:
            return fn(std::integral_constant<Isa, Isa::Avx512Vnni>{});
        case Isa::Avx2:
            return fn(std::integral_constant<Isa, Isa::Avx2>{});
        case Isa::Neon:
            return fn(std::integral_constant<Isa, Isa::Neon>{});
        case Isa::Portable:
            return fn(std::integral_constant<Isa, Isa::Portable>{});
    }
}

// Matchers are lists of checks; the first that does not hold is the reason.
using Refused = std::optional<std::string>;

inline std::string one_of(std::string_view what, std::string_view got, std::string_view takes) {
    return std::string(what) + " is " + std::string(got) + ", takes " + std::string(takes);
}

// Reason unless `value` is a positive multiple of `step`.
inline Refused not_multiple(std::string_view name, uint32_t value, uint32_t step) {
    if (value != 0 && value % step == 0) return std::nullopt;
    return one_of(name, std::to_string(value), "multiples of " + std::to_string(step));
}

// Items of operations that work row by row.
inline uint32_t items_rows(const OpCall& call) {
    return call.rows;
}

}  // namespace strata::cpu
