#include "engine/backend/weight_copies.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace strata {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPortionBytes = uint64_t{8} << 20;  // between two reports

}  // namespace

uint64_t weight_copies_bytes(const TensorFiles& files, const WeightPlan& plan) {
    uint64_t bytes = 0;
    for (uint32_t file = 0; file < kFileCount; ++file)
        for (size_t i = 0; i < plan.is_mapped[file].size(); ++i)
            if (plan.is_mapped[file][i])
                bytes += align_up(files.file(file).tensors()[i].bytes, kAlignment);
    return bytes;
}

WeightCopies::WeightCopies(const TensorFiles& files,
                           const WeightPlan& plan,
                           const LoadProgress& progress)
    : buffer_(weight_copies_bytes(files, plan), "copies of weights") {
    buffer_.advise_large_pages();
    std::byte* next = buffer_.data();
    uint64_t done = 0;
    const auto copy = [&](std::span<const std::byte> from) {
        for (uint64_t at = 0; at < from.size(); at += kPortionBytes) {
            const uint64_t bytes = std::min(kPortionBytes, from.size() - at);
            std::memcpy(next + at, from.data() + at, bytes);
            done += bytes;
            progress("copy", done, plan.mapped_bytes);
        }
        release_mapped_pages(from.data(), from.size());
        next += align_up(from.size(), kAlignment);
    };
    progress("copy", done, plan.mapped_bytes);
    for (uint32_t file = 0; file < kFileCount; ++file) {
        copy_of_tensor_[file].assign(plan.is_mapped[file].size(), nullptr);
        for (size_t i = 0; i < plan.is_mapped[file].size(); ++i) {
            if (!plan.is_mapped[file][i]) continue;
            copy_of_tensor_[file][i] = next;
            copy(files.file(file).tensor_bytes(files.file(file).tensors()[i]));
        }
    }
}

WeightView WeightCopies::redirect(const TensorFiles& files,
                                  const TensorSlice& slice,
                                  WeightView view) const {
    const auto& copies = copy_of_tensor_[slice.file];
    if (copies.empty() || copies[slice.tensor] == nullptr) return view;
    const std::byte* const begin = files.file(slice.file).tensor_bytes(files.tensor(slice)).data();
    view.data = copies[slice.tensor] + (view.data - begin);
    return view;
}

}  // namespace strata
