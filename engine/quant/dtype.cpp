// The one table of element types: names, block sizes and ids. Names of types that the engine cannot
// run are listed as well, so that a refusal can name what the file holds.
#include "engine/quant/dtype.h"

#include <array>
#include <string>

#include "engine/base/assert.h"

namespace strata {
namespace {

constexpr std::array<DTypeInfo, 13> kTypes = {{
    {DType::F32, "f32", 1, 4},
    {DType::F16, "f16", 1, 2},
    {DType::BF16, "bf16", 1, 2},
    {DType::Q4_0, "q4_0", 32, 18},
    {DType::Q4_1, "q4_1", 32, 20},
    {DType::Q5_0, "q5_0", 32, 22},
    {DType::Q5_1, "q5_1", 32, 24},
    {DType::Q8_0, "q8_0", 32, 34},
    {DType::Q4_K, "q4_k", 256, 144},
    {DType::Q5_K, "q5_k", 256, 176},
    {DType::Q6_K, "q6_k", 256, 210},
    {DType::I8Block, "i8block", 32, 40},
    {DType::None, "none", 1, 0},
}};

// GGML's type ids in order; empty where an id was withdrawn. Source: the enumeration of the public
// `gguf` package (GGMLQuantizationType).
constexpr std::array<std::string_view, 42> kGgmlNames = {
    "f32",     "f16",   "q4_0",   "q4_1",  "",      "",       "q5_0", "q5_1",    "q8_0",
    "q8_1",    "q2_k",  "q3_k",   "q4_k",  "q5_k",  "q6_k",   "q8_k", "iq2_xxs", "iq2_xs",
    "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "i8",   "i16",     "i32",
    "i64",     "f64",   "iq1_m",  "bf16",  "",      "",       "",     "tq1_0",   "tq2_0",
    "",        "",      "",       "mxfp4", "nvfp4", "q1_0",
};

// Ids without a name need one string each; "type 0" .. "type 255", and one for the rest.
struct NumberNames {
    std::array<std::string, 256> names;
    NumberNames() {
        for (uint32_t id = 0; id < names.size(); ++id) names[id] = "type " + std::to_string(id);
    }
};

}  // namespace

std::optional<DTypeInfo> find_dtype(uint32_t ggml_id) {
    for (const DTypeInfo& info : kTypes) {
        const bool is_in_files = info.type != DType::I8Block && info.type != DType::None;
        if (is_in_files && static_cast<uint32_t>(info.type) == ggml_id) return info;
    }
    return std::nullopt;
}

const DTypeInfo& dtype_info(DType type) {
    for (const DTypeInfo& info : kTypes) {
        if (info.type == type && type != DType::None) return info;
    }
    assert_failed(__FILE__, __LINE__, "dtype_info", "the type has no element size");
}

std::string_view dtype_name(DType type) {
    for (const DTypeInfo& info : kTypes) {
        if (info.type == type) return info.name;
    }
    return "unknown";
}

std::string_view ggml_type_name(uint32_t ggml_id) {
    if (ggml_id < kGgmlNames.size() && !kGgmlNames[ggml_id].empty()) return kGgmlNames[ggml_id];
    static const NumberNames numbers;
    return ggml_id < numbers.names.size() ? std::string_view(numbers.names[ggml_id])
                                          : std::string_view("type over 255");
}

}  // namespace strata
