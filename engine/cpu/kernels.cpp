// The one explicit table of CPU kernels.
#include "engine/cpu/kernels.h"

#include "engine/cpu/entries.h"

namespace strata {

namespace {

void append_isa(cpu::Isa isa, std::vector<KernelEntry>& table) {
    const size_t begin = table.size();
    cpu::append_norm(isa, table);
    cpu::append_quantize(isa, table);
    cpu::append_matmul_i8(isa, table);
    cpu::append_matmul_f32(isa, table);
    cpu::append_expert_matmul(isa, table);
    cpu::append_rope(isa, table);
    cpu::append_kv_append(isa, table);
    cpu::append_attention(isa, table);
    cpu::append_elementwise(isa, table);
    cpu::append_recurrent(isa, table);
    cpu::append_streams(isa, table);
    cpu::append_index(isa, table);
    if (cpu::is_compiled(isa)) return;
    for (size_t i = begin; i < table.size(); ++i) table[i].run = nullptr;
}

std::vector<KernelEntry> make_table(const CpuFeatures& features, bool is_for_report) {
    using cpu::Isa;
    const struct {
        Isa isa;
        bool is_present;
    } order[] = {
        {Isa::Avx512Vnni, features.avx512vnni},
        {Isa::Avx2, features.avx2},
        {Isa::Neon, features.neon},
        {Isa::Portable, true},
    };
    std::vector<KernelEntry> table;
    for (const auto& [isa, is_present] : order) {
        if (is_present && (is_for_report || cpu::is_compiled(isa))) append_isa(isa, table);
    }
    cpu::append_embed(table);
    cpu::append_gather_rows(table);
    cpu::append_concat(table);
    cpu::append_slice(table);
    cpu::append_delta_gates(table);
    cpu::append_routing(table);
    cpu::append_expert_sum(table);
    cpu::append_stream_spread(table);
    cpu::append_tables(table);
    cpu::append_scale(table);
    return table;
}

}  // namespace

std::vector<KernelEntry> cpu_kernels(const CpuFeatures& features) {
    return make_table(features, false);
}

std::vector<KernelEntry> cpu_kernels_for_report(const CpuFeatures& features) {
    return make_table(features, true);
}

}  // namespace strata
