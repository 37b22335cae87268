// The element types of GGUF tensors: ids as in the file, names, block sizes. One table (dtype.cpp)
// holds every type that files may use, so that a file is always sized and described; which types
// can be computed with is the question of kernels (registry) and decoders (dequantize.h) alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace strata {

// Values are GGML's type ids as stored in GGUF files. `None` marks "no such operand" in requests.
enum class DType : uint8_t {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    // Activations rounded to int8 in blocks of 32 with an f32 scale and an int32 block sum
    // (never stored in files; see engine/cpu/quantize.h for the exact layout).
    I8Block = 200,
    None = 255,
};

struct DTypeInfo {
    DType type;
    std::string_view name;    // lower case, as users write it: "q4_1"
    uint32_t block_elements;  // elements per block, a power of two up to 256
    uint32_t block_bytes;     // bytes per block
};

// Info of a type of files; std::nullopt for an id that no type of files has.
std::optional<DTypeInfo> find_dtype(uint32_t ggml_id);

// The type, of files or not, that users write as `name` ("q4_1", "i8block", "none").
std::optional<DType> find_dtype_named(std::string_view name);

// Info of an enumerator; `type` must be a member other than None.
const DTypeInfo& dtype_info(DType type);

std::string_view dtype_name(DType type);

// Name of any type id, "type 77" for one that no type of files has.
std::string_view ggml_type_name(uint32_t ggml_id);

// Bytes of `elements` consecutive elements; elements must be a multiple of the block.
inline uint64_t dtype_bytes(DType type, uint64_t elements) {
    const DTypeInfo& info = dtype_info(type);
    return elements / info.block_elements * info.block_bytes;
}

}  // namespace strata
