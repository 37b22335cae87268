// A GGUF file, mapped read-only: metadata, tensor index, tensor bytes. The file is hostile input:
// every count, offset, length, type and shape is checked before use, and a bad file ends in
// Error{InvalidRequest, "gguf.*"} whose text names the file, the key or tensor and the reason
// (ErrorKind::Unsupported for another version, byte order or a split model).
// Format: GGUF v2/v3 little-endian, as documented with ggml. Stricter than some readers: keys and
// tensor names are unique and printable UTF-8, and tensors may not overlap, so text from here can
// be shown as it is. A file truncated by another process while mapped raises SIGBUS when its lost
// pages are touched (engine/base/mapped_file.h); replacing it by rename is safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/quant/dtype.h"

namespace strata::gguf {

struct TensorInfo {
    std::string name;
    uint32_t ggml_type = 0;                     // id in the file
    DType type = DType::None;                   // None when the engine does not know the id
    uint32_t dimensions = 0;                    // 1..4
    std::array<uint64_t, 4> shape{1, 1, 1, 1};  // shape[0] is contiguous
    uint64_t offset = 0;                        // from the start of the file
    uint64_t bytes = 0;                         // 0 when the type is unknown
    uint64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

class File {
  public:
    // Opens, maps and checks the whole header. Throws Error: "gguf.open" (missing, not a file, no
    // permission), "gguf.magic", "gguf.version", "gguf.split" (one part of a split model),
    // "gguf.truncated", "gguf.corrupt", "gguf.limit".
    static File open(const std::string& path);
    // The same on the bytes of a whole file, which must outlive the object; `path` only names it.
    static File parse(std::span<const std::byte> bytes, const std::string& path);
    File(File&&) noexcept;
    File& operator=(File&&) noexcept;
    ~File();

    const std::string& path() const;
    uint64_t file_bytes() const;
    const std::vector<TensorInfo>& tensors() const;
    const TensorInfo* find_tensor(std::string_view name) const;  // nullptr when absent
    std::span<const std::byte> tensor_bytes(const TensorInfo& tensor) const;
    std::string header_sha256() const;  // hex, of metadata and tensor index

    // Metadata. Values are read on demand; string views point into the mapping. `find_*` return
    // nullopt when the key is absent; a key of another type, or an integer out of range, throws
    // Error "gguf.metadata". Integer keys accept any integer type; `find_uint_array` also accepts a
    // scalar (as an array of one). `find_float` refuses NaN and infinity; `find_string` refuses
    // malformed UTF-8, strings of an array are given as they are.
    std::optional<uint64_t> find_uint(std::string_view key) const;
    std::optional<double> find_float(std::string_view key) const;
    std::optional<bool> find_bool(std::string_view key) const;
    std::optional<std::string_view> find_string(std::string_view key) const;
    std::optional<std::vector<uint64_t>> find_uint_array(std::string_view key) const;
    // Bools, or integers of which 0 is false.
    std::optional<std::vector<bool>> find_bool_array(std::string_view key) const;
    std::optional<std::vector<std::string_view>> find_string_array(std::string_view key) const;
    std::optional<uint64_t> find_array_length(std::string_view key) const;
    bool has(std::string_view key) const;

  private:
    struct Impl;
    explicit File(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace strata::gguf
