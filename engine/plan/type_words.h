// The words that people, the wire and reports have for types of the KV cache and of activations:
// `int8` for Q8_0 pages and for I8Block rows. One table each.
#pragma once

#include <string_view>

#include "engine/quant/dtype.h"

namespace strata {

struct TypeWord {
    DType type;
    std::string_view word;
};

inline constexpr TypeWord kKvWords[] = {{DType::F32, "f32"},
                                        {DType::F16, "f16"},
                                        {DType::BF16, "bf16"},
                                        {DType::Q8_0, "int8"},
                                        {DType::Q4_0, "q4_0"}};
inline constexpr TypeWord kActivationWords[] = {{DType::I8Block, "int8"}, {DType::F32, "f32"}};

// The word of a type in the role of a KV cache; of one that no cache has, the type's own name.
inline std::string_view kv_word(DType type) {
    for (const TypeWord& entry : kKvWords) {
        if (entry.type == type) return entry.word;
    }
    return dtype_name(type);
}

}  // namespace strata
