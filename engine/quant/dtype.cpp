// The one table of element types.
#include "engine/quant/dtype.h"

#include <array>
#include <string>

#include "engine/base/assert.h"

namespace strata {
namespace {

// Source: the public `gguf` package (GGMLQuantizationType, GGML_QUANT_SIZES); Q2_0, which it lacks,
// after ggml: f16 scale and 16 bytes of 2-bit codes for 64 weights.
constexpr std::array<DTypeInfo, 37> kTypes = {{
    {DType::F32, "f32", 1, 4},
    {DType::F16, "f16", 1, 2},
    {DType::Q4_0, "q4_0", 32, 18},
    {DType::Q4_1, "q4_1", 32, 20},
    {DType::Q5_0, "q5_0", 32, 22},
    {DType::Q5_1, "q5_1", 32, 24},
    {DType::Q8_0, "q8_0", 32, 34},
    {DType::Q8_1, "q8_1", 32, 40},
    {DType::Q2_K, "q2_k", 256, 84},
    {DType::Q3_K, "q3_k", 256, 110},
    {DType::Q4_K, "q4_k", 256, 144},
    {DType::Q5_K, "q5_k", 256, 176},
    {DType::Q6_K, "q6_k", 256, 210},
    {DType::Q8_K, "q8_k", 256, 292},
    {DType::IQ2_XXS, "iq2_xxs", 256, 66},
    {DType::IQ2_XS, "iq2_xs", 256, 74},
    {DType::IQ3_XXS, "iq3_xxs", 256, 98},
    {DType::IQ1_S, "iq1_s", 256, 50},
    {DType::IQ4_NL, "iq4_nl", 32, 18},
    {DType::IQ3_S, "iq3_s", 256, 110},
    {DType::IQ2_S, "iq2_s", 256, 82},
    {DType::IQ4_XS, "iq4_xs", 256, 136},
    {DType::I8, "i8", 1, 1},
    {DType::I16, "i16", 1, 2},
    {DType::I32, "i32", 1, 4},
    {DType::I64, "i64", 1, 8},
    {DType::F64, "f64", 1, 8},
    {DType::IQ1_M, "iq1_m", 256, 56},
    {DType::BF16, "bf16", 1, 2},
    {DType::TQ1_0, "tq1_0", 256, 54},
    {DType::TQ2_0, "tq2_0", 256, 66},
    {DType::MXFP4, "mxfp4", 32, 17},
    {DType::NVFP4, "nvfp4", 64, 36},
    {DType::Q1_0, "q1_0", 128, 18},
    {DType::Q2_0, "q2_0", 64, 18},
    {DType::I8Block, "i8block", 32, 40},
    {DType::None, "none", 1, 0},
}};

constexpr bool is_in_files(DType type) {
    return type != DType::I8Block && type != DType::None;
}

// Place of each id in kTypes; kTypes.size() where an id has no type.
constexpr std::array<uint8_t, 256> kPlaces = [] {
    std::array<uint8_t, 256> places{};
    for (uint8_t& place : places) place = kTypes.size();
    for (size_t i = 0; i < kTypes.size(); ++i)
        places[static_cast<size_t>(kTypes[i].type)] = static_cast<uint8_t>(i);
    return places;
}();

const DTypeInfo* find(uint32_t id) {
    return id < kPlaces.size() && kPlaces[id] < kTypes.size() ? &kTypes[kPlaces[id]] : nullptr;
}

// Ids without a name need one string each; "type 0" .. "type 255", and one for the rest.
struct NumberNames {
    std::array<std::string, 256> names;
    NumberNames() {
        for (uint32_t id = 0; id < names.size(); ++id) names[id] = "type " + std::to_string(id);
    }
};

}  // namespace

std::optional<DTypeInfo> find_dtype(uint32_t ggml_id) {
    const DTypeInfo* info = find(ggml_id);
    return info != nullptr && is_in_files(info->type) ? std::optional(*info) : std::nullopt;
}

std::optional<DType> find_dtype_named(std::string_view name) {
    for (const DTypeInfo& info : kTypes) {
        if (info.name == name) return info.type;
    }
    return std::nullopt;
}

const DTypeInfo& dtype_info(DType type) {
    const DTypeInfo* info = find(static_cast<uint32_t>(type));
    STRATA_ASSERT(info != nullptr && type != DType::None, "the type has no element size");
    return *info;
}

std::string_view dtype_name(DType type) {
    const DTypeInfo* info = find(static_cast<uint32_t>(type));
    return info == nullptr ? "unknown" : info->name;
}

std::string_view ggml_type_name(uint32_t ggml_id) {
    if (const DTypeInfo* info = find(ggml_id); info != nullptr && is_in_files(info->type))
        return info->name;
    static const NumberNames numbers;
    return ggml_id < numbers.names.size() ? std::string_view(numbers.names[ggml_id])
                                          : std::string_view("type over 255");
}

}  // namespace strata
