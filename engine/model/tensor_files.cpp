#include "engine/model/tensor_files.h"

#include "engine/base/assert.h"

namespace strata {

const gguf::File& TensorFiles::file(uint32_t index) const {
    STRATA_ASSERT(index < kFileCount && files_[index] != nullptr, "the slice's file is open");
    return *files_[index];
}

std::span<const std::byte> TensorFiles::bytes(const TensorSlice& slice) const {
    const gguf::TensorInfo& info = tensor(slice);
    const std::span<const std::byte> all = file(slice.file).tensor_bytes(info);
    // A vector may lie in the file as a matrix of its elements.
    if (info.dimensions == 1 || (slice.experts == 1 && slice.rows == info.elements())) {
        return all.subspan(dtype_bytes(info.type, slice.row_begin),
                           dtype_bytes(info.type, slice.rows));
    }
    const uint64_t row_bytes = dtype_bytes(info.type, info.shape[0]);
    const uint64_t last_rows = (slice.experts - 1) * expert_bytes(slice) + row_bytes * slice.rows;
    STRATA_ASSERT(row_bytes * slice.row_begin + last_rows <= all.size(), "slice in its tensor");
    return all.subspan(row_bytes * slice.row_begin, last_rows);
}

uint64_t TensorFiles::expert_bytes(const TensorSlice& slice) const {
    const gguf::TensorInfo& info = tensor(slice);
    return slice.experts == 1 ? 0 : dtype_bytes(info.type, info.shape[0]) * info.shape[1];
}

uint64_t TensorFiles::rows_bytes(const TensorSlice& slice) const {
    return uint64_t{slice.experts} *
           (bytes(slice).size() - (slice.experts - 1) * expert_bytes(slice));
}

}  // namespace strata
