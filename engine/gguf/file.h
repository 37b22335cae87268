// A GGUF file, mapped read-only: metadata, tensor index, tensor bytes. A split model, and a model
// whose per-layer embedding table lies in a file of its own, are several parts with one tensor
// table and the metadata of the first part. The files are hostile input: every count, offset,
// length, type and shape is checked before use, and a bad file ends in
// Error{InvalidRequest, "gguf.*"} whose text names the file, the key or tensor and the reason
// (ErrorKind::Unsupported for another version or byte order).
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

struct Header;

struct TensorInfo {
    std::string name;
    uint32_t ggml_type = 0;                     // id in the file
    DType type = DType::None;                   // None when the engine does not know the id
    uint32_t dimensions = 0;                    // 1..4
    std::array<uint64_t, 4> shape{1, 1, 1, 1};  // shape[0] is contiguous
    uint32_t part = 0;                          // which file of the set it lies in
    uint64_t offset = 0;                        // from the start of that file
    uint64_t bytes = 0;                         // 0 when the type is unknown
    uint64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// The bytes of one whole file, and what errors call it.
struct FileBytes {
    std::span<const std::byte> bytes;
    std::string path;
};

class File {
  public:
    // Opens, maps and checks the whole header, of a split model's first part those of all parts
    // (split.h). Throws Error: "gguf.open" (missing, not a file, no permission), "gguf.magic",
    // "gguf.version", "gguf.truncated", "gguf.corrupt", "gguf.limit"; of a split model
    // "gguf.split" (not its first part, or not named as one), "gguf.split_missing",
    // "gguf.split_foreign" (a file in the place of a part that is not that part) and
    // "gguf.duplicate" (two files hold a tensor of one name).
    static File open(const std::string& path);
    // The same and the tensors of one more file, whose metadata is not read: its architecture must
    // be the model's where it says one ("gguf.companion"), and it must not be split.
    static File open_with(const std::string& path, const std::string& companion);
    // The same on the bytes of all parts, in order, which must outlive the object.
    static File parse(std::vector<FileBytes> parts);
    static File parse(std::span<const std::byte> bytes, const std::string& path);
    File(File&&) noexcept;
    File& operator=(File&&) noexcept;
    ~File();

    const std::string& path() const;  // of the first part
    uint64_t file_bytes() const;      // of all parts
    // Files that the tensors lie in; each is mapped at a page.
    uint32_t parts() const;
    std::span<const std::byte> part_bytes(uint32_t part) const;
    const std::string& part_path(uint32_t part) const;
    const std::vector<TensorInfo>& tensors() const;
    const TensorInfo* find_tensor(std::string_view name) const;  // nullptr when absent
    std::span<const std::byte> tensor_bytes(const TensorInfo& tensor) const;
    std::string header_sha256() const;  // hex, of metadata and tensor index of all parts

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
    static File join(std::vector<FileBytes> files, std::vector<Header> headers);
    std::unique_ptr<Impl> impl_;
};

}  // namespace strata::gguf
