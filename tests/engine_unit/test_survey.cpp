// Kernel tables for reports and for running, and the survey of what they serve.
#include <set>
#include <string>
#include <variant>

#include "engine/backend/survey.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/kernels.h"
#include "engine/loop/foreign_backend.h"
#include "engine/metal/kernels.h"
#include "tests/engine_unit/check.h"

namespace strata {
namespace {

// A processor that has everything, which none has: what a wrong answer of cpuid would look like.
CpuFeatures all_features() {
    CpuFeatures features;
    features.avx2 = features.avx512vnni = features.neon = true;
    return features;
}

std::set<std::string> ids_of(const std::vector<KernelEntry>& entries) {
    std::set<std::string> ids;
    for (const KernelEntry& entry : entries) ids.insert(entry.id);
    return ids;
}

TEST(a_table_to_run_has_launchers_only) {
    for (const KernelEntry& entry : cpu_kernels(all_features()))
        CHECK(entry.run != nullptr, entry.id);
    const Registry registry(cpu_kernels(all_features()));  // owns what the answers point to
    for (const SurveyAnswer& answer : survey(registry)) {
        if (answer.kernel) CHECK(answer.kernel->run != nullptr, answer.kernel->id);
    }
}

TEST(a_table_for_reports_lists_what_is_not_compiled_without_launcher) {
    const std::set<std::string> runnable = ids_of(cpu_kernels(all_features()));
    size_t absent = 0;
    for (const std::string_view isa : kIsaNames) {
        std::set<std::string> isas;
        for (const KernelEntry& entry : cpu_kernels_for_report(isa_features(isa))) {
            isas.emplace(entry.isa);
            CHECK((entry.run != nullptr) == runnable.contains(entry.id), entry.id);
            absent += entry.run == nullptr;
        }
        CHECK(isas.contains(std::string(isa)), isa);
    }
    CHECK(absent > 0, "each program lacks the code of another processor family");
}

TEST(every_question_has_a_kernel_or_reasons) {
    const Registry registry(cpu_kernels(CpuFeatures{}));
    const std::vector<SurveyAnswer> answers = survey(registry);
    std::set<OpKind> kinds;
    std::set<uint32_t> features;
    std::set<DType> weights;
    for (size_t i = 0; i < answers.size(); ++i) {
        const SurveyAnswer& answer = answers[i];
        kinds.insert(answer.request.kind);
        weights.insert(answer.request.weight);
        features.insert(answer.request.features);
        CHECK(answer.shape == kStepShapes[i % std::size(kStepShapes)]);
        CHECK((answer.kernel != nullptr) == answer.reasons.empty(), describe(answer.request));
        const auto found = registry.find(answer.request);
        CHECK(std::holds_alternative<Refusal>(found) == !answer.kernel, describe(answer.request));
        if (answer.kernel) CHECK(std::get<const KernelEntry*>(found) == answer.kernel);
    }
    CHECK(kinds.size() == static_cast<size_t>(kOpKindCount));
    for (const DType type : surveyed_types()) CHECK(weights.contains(type), dtype_name(type));
    uint32_t all = 0;
    for (const uint32_t bits : features) all |= bits;
    for (uint32_t bit = 0; bit < 32; ++bit) {
        const bool is_named = feature_name(1u << bit) != feature_name(1u << 31);
        CHECK(!is_named || (all >> bit & 1) != 0, feature_name(1u << bit));
    }
}

TEST(a_hidden_kernel_is_no_answer) {
    const Registry registry(cpu_kernels(CpuFeatures{}), {KernelMask::parse("*:sequences>1")});
    for (const SurveyAnswer& answer : survey(registry)) {
        if (answer.shape == StepShape::ManySequences) CHECK(!answer.kernel, answer.kernel->id);
    }
}

TEST(backends_without_kernels_serve_nothing) {
    for (const std::vector<KernelEntry>& table : {cuda_kernels(), metal_kernels()}) {
        std::set<OpKind> written;
        for (const KernelEntry& entry : table) written.insert(entry.kind);
        const Registry registry(table);
        for (const SurveyAnswer& answer : survey(registry)) {
            if (written.contains(answer.request.kind)) continue;
            CHECK(!answer.kernel);
            CHECK(answer.reasons.size() == 1 && answer.reasons[0].code == "kernel.missing");
        }
    }
}

TEST(assumed_facts_are_read) {
    const AssumedFacts facts =
        parse_assumed("device=RTX 4090,device_memory=24GiB,host_memory=1000,cores=16");
    CHECK(facts.device == "RTX 4090", facts.device);
    CHECK(facts.device_memory == uint64_t{24} << 30);
    CHECK(facts.host_memory == uint64_t{1000});
    CHECK(facts.cores == 16u);
    CHECK(parse_assumed("").is_empty());
}

TEST(what_is_no_fact_is_named) {
    for (const char* text : {"cores",
                             "cores=",
                             "cores=0",
                             "cores=4KiB",
                             "cores=-1",
                             "speed=1",
                             "device_memory=24GB",
                             "device_memory=GiB",
                             "device_memory=99999999TiB",
                             "host_memory=18446744073709551616",
                             "cores=1,,device=x"}) {
        bool is_refused = false;
        try {
            parse_assumed(text);
        } catch (const Error& error) {
            is_refused = error.code() == "config.flag";
        }
        CHECK(is_refused, text);
    }
}

TEST(a_foreign_backend_has_its_own_table_and_facts) {
    const ForeignBackend arm("cpu", "neon", parse_assumed("cores=3,host_memory=2GiB"));
    CHECK(arm.device() == "an assumed cpu device", arm.device());
    CHECK(arm.host().isa == "neon" && arm.host().cores == 3);
    CHECK(arm.host().memory_available_bytes == uint64_t{2} << 30);
    CHECK(ids_of(arm.kernels()) == ids_of(cpu_kernels_for_report(isa_features("neon"))));
    const ForeignBackend cuda("cuda", "auto", parse_assumed("device=H100"));
    CHECK(cuda.device() == "H100" && cuda.name() == "cuda");
    CHECK(ids_of(cuda.kernels()) == ids_of(cuda_kernels()));
}

}  // namespace
}  // namespace strata

CHECK_MAIN
