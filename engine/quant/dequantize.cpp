#include "engine/quant/dequantize.h"

#include <cstring>

#include "engine/base/assert.h"
#include "engine/quant/blocks.h"

namespace strata {

bool can_dequantize(DType type) {
    return type == DType::F32 || type == DType::F16 || type == DType::BF16 ||
           blocks::with_format(static_cast<int>(type), [](auto, blocks::Format) {});
}

void dequantize_row(DType type, const std::byte* row, float* out, uint32_t k) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(row);
    STRATA_ASSERT(k % dtype_info(type).block_elements == 0, "a row is a whole number of blocks");
    if (type == DType::F32) {
        std::memcpy(out, bytes, size_t{k} * 4);
    } else if (type == DType::F16) {
        for (uint32_t i = 0; i < k; ++i)
            out[i] = blocks::f16_to_f32(blocks::read_u16(bytes + 2 * i));
    } else if (type == DType::BF16) {
        for (uint32_t i = 0; i < k; ++i)
            out[i] = blocks::bf16_to_f32(blocks::read_u16(bytes + 2 * i));
    } else {
        const bool is_known = blocks::row_to_f32(static_cast<int>(type), bytes, out, k);
        STRATA_ASSERT(is_known, "the type has no decoder");
    }
}

}  // namespace strata
