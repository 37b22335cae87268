// Rows of any element type of GGUF files as f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/quant/dtype.h"

namespace strata {

// Decodes `k` elements that start at `row` (the file's layout, any alignment) into out [k]. Equal
// bit for bit to GGML's decoders. `type` is a type of files, `k` a multiple of its block.
void dequantize_row(DType type, const std::byte* row, float* out, uint32_t k);

}  // namespace strata
