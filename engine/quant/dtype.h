// The element types of GGUF tensors: ids as in the file, block size and bytes per block.
// One table (dtype.cpp); nothing else in the engine switches over block sizes.
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
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    BF16 = 30,
    // Activations rounded to int8 in blocks of 32 with an f32 scale and an int32 block sum
    // (never stored in files; see engine/cpu/quantize.h for the exact layout).
    I8Block = 200,
    None = 255,
};

struct DTypeInfo {
    DType type;
    std::string_view name;    // lower case, as users write it: "q4_1"
    uint32_t block_elements;  // elements per block: 1, 32 or 256
    uint32_t block_bytes;     // bytes per block
};

// Info of a type the engine knows; std::nullopt for an id it does not.
std::optional<DTypeInfo> find_dtype(uint32_t ggml_id);

// Info of an enumerator; `type` must be a member other than None.
const DTypeInfo& dtype_info(DType type);

std::string_view dtype_name(DType type);

// Name of any GGML type id, also of those the engine cannot run ("iq2_xxs"), else "type 77".
std::string_view ggml_type_name(uint32_t ggml_id);

// Bytes of `elements` consecutive elements; elements must be a multiple of the block.
inline uint64_t dtype_bytes(DType type, uint64_t elements) {
    const DTypeInfo& info = dtype_info(type);
    return elements / info.block_elements * info.block_bytes;
}

}  // namespace strata
