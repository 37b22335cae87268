#include "engine/backend/page_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace strata {

PageBuffer::PageBuffer(uint64_t bytes, std::string_view purpose) : bytes_(bytes) {
    if (bytes == 0) {
        return;
    }
    void* memory =
        bytes > SIZE_MAX / 2
            ? MAP_FAILED
            : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw Error(ErrorKind::OutOfMemory,
                    "mem.allocate",
                    "cannot allocate " + std::to_string(bytes) + " bytes for " +
                        std::string(purpose) + ": " + std::strerror(errno));
    }
    data_ = static_cast<std::byte*>(memory);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

PageBuffer::~PageBuffer() {
    if (data_ != nullptr) {
        munmap(data_, bytes_);
    }
}

void PageBuffer::advise_large_pages() const {
#ifdef MADV_HUGEPAGE
    if (data_ != nullptr) {
        madvise(data_, bytes_, MADV_HUGEPAGE);
    }
#endif
}

void advise_random_reads(const std::byte* data, uint64_t bytes) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uint64_t>(data);
    const uint64_t first = align_up(begin, page);
    const uint64_t end = (begin + bytes) & ~(page - 1);
    if (first < end) {
        madvise(const_cast<std::byte*>(data) + (first - begin), end - first, MADV_RANDOM);
    }
}

void release_mapped_pages(const std::byte* data, uint64_t bytes) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uint64_t>(data);
    const uint64_t first = align_up(begin, page);
    const uint64_t end = (begin + bytes) & ~(page - 1);
    if (first < end) {
        madvise(const_cast<std::byte*>(data) + (first - begin), end - first, MADV_DONTNEED);
    }
}

}  // namespace strata
