// A regular file mapped read-only for as long as the object lives.
//
// What a mapping cannot promise: if another process truncates the file afterwards, touching the
// lost pages raises SIGBUS; the size seen here is the one at the time of mapping. Replacing a
// model by renaming a new file over it is safe (the mapping keeps the old one), rewriting it in
// place is not.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace strata {

class MappedFile {
  public:
    // Maps the whole file. Throws Error{InvalidRequest, code} whose text names the path and the
    // reason: not found, no permission, a directory or another special file, mapping refused.
    // An empty file maps to an empty span.
    static MappedFile open(const std::string& path, const std::string& code);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

    std::span<const std::byte> bytes_;
};

}  // namespace strata
