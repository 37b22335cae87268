// Memory taken from the operating system in whole pages: zeroed, page-aligned, one owner. Pages
// become resident when first touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strata {

class PageBuffer {
  public:
    PageBuffer() = default;
    // Throws Error{OutOfMemory, "mem.allocate"} that names `purpose` and the size.
    PageBuffer(uint64_t bytes, std::string_view purpose);
    PageBuffer(PageBuffer&& other) noexcept;
    PageBuffer& operator=(PageBuffer&& other) noexcept;
    PageBuffer(const PageBuffer&) = delete;
    PageBuffer& operator=(const PageBuffer&) = delete;
    ~PageBuffer();

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

    // Hint: back this memory with large pages where the system can.
    void advise_large_pages() const;

  private:
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
};

// Hint: the whole pages within [data, data + bytes) of a mapped file are not needed soon. Their
// contents come back from the file when read again.
void release_mapped_pages(const std::byte* data, uint64_t bytes);

// `value` rounded up to a multiple of `alignment`, which is a power of two.
inline uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

// Pages of a mapped file are read one by one, as they are touched: nothing around them is.
void advise_random_reads(const std::byte* data, uint64_t bytes);

}  // namespace strata
