// open, fstat, mmap; the descriptor is closed as soon as the mapping holds the file.
#include "engine/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace strata {
namespace {

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }

  private:
    int fd_;
};

std::string reason_of(int error) {
    return std::generic_category().message(error);
}

}  // namespace

MappedFile MappedFile::open(const std::string& path, const std::string& code) {
    const auto fail = [&](const std::string& reason) {
        return Error(ErrorKind::InvalidRequest, code, printable(path) + ": " + reason);
    };
    if (path.empty()) throw Error(ErrorKind::InvalidRequest, code, "the file's path is empty");
    if (path.find('\0') != std::string::npos) throw fail("the path contains a NUL byte");
    // O_NONBLOCK: a FIFO must be refused below, not waited for.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) throw fail("cannot be opened: " + reason_of(errno));
    struct stat facts = {};
    if (::fstat(file.get(), &facts) != 0) throw fail("cannot be examined: " + reason_of(errno));
    if (S_ISDIR(facts.st_mode)) throw fail("is a directory, not a file");
    if (!S_ISREG(facts.st_mode)) throw fail("is not a regular file");
    if (facts.st_size == 0) return MappedFile();
    const auto length = static_cast<uint64_t>(facts.st_size);
    if (length > SIZE_MAX) throw fail("is too large to be mapped on this machine");
    void* mapping =
        ::mmap(nullptr, static_cast<size_t>(length), PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapping == MAP_FAILED)
        throw fail("cannot be mapped (" + std::to_string(length) + " bytes): " + reason_of(errno));
    return MappedFile({static_cast<const std::byte*>(mapping), static_cast<size_t>(length)});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace strata
