// The files that tensor slices name: a model's own and, beside it, one of a drafter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/gguf/file.h"
#include "engine/model/graph.h"

namespace strata {

// Values of TensorSlice::file.
inline constexpr uint32_t kBaseFile = 0;
inline constexpr uint32_t kDrafterFile = 1;
inline constexpr uint32_t kFileCount = 2;

// A view: the files outlive it and stay where they are.
class TensorFiles {
  public:
    explicit TensorFiles(const gguf::File& base, const gguf::File* drafter = nullptr)
        : files_{&base, drafter} {}

    // `index` names a file that is there.
    const gguf::File& file(uint32_t index) const;
    bool has_file(uint32_t index) const { return files_[index] != nullptr; }

    const gguf::TensorInfo& tensor(const TensorSlice& slice) const {
        return file(slice.file).tensors()[slice.tensor];
    }
    // Bytes of the slice's rows in the mapped file; of experts from the first one's first row to
    // the last one's last.
    std::span<const std::byte> bytes(const TensorSlice& slice) const;
    // From an expert's rows to the next one's; 0 where the slice is of one matrix.
    uint64_t expert_bytes(const TensorSlice& slice) const;
    // Of the slice's own rows alone.
    uint64_t rows_bytes(const TensorSlice& slice) const;

  private:
    const gguf::File* files_[kFileCount];
};

}  // namespace strata
