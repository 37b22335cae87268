// Rows of the element types that have a decoder as f32: F32, F16, BF16 and the block formats of
// blocks.h. Other types of files have none here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/quant/dtype.h"

namespace strata {

bool can_dequantize(DType type);

// Decodes `k` elements that start at `row` (the file's layout, any alignment) into out [k]. Equal
// bit for bit to GGML's decoders. can_dequantize(type); `k` a multiple of its block.
void dequantize_row(DType type, const std::byte* row, float* out, uint32_t k);

}  // namespace strata
