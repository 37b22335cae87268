// The header of a GGUF file, parsed and checked once: metadata entries as views into the bytes,
// the tensor index, and where the data section starts. Nothing is copied but tensor names, so a
// vocabulary of any size costs one walk over its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf/file.h"

namespace strata::gguf {

// Ids of metadata value types, as in the file.
enum class ValueType : uint32_t {
    Uint8 = 0,
    Int8 = 1,
    Uint16 = 2,
    Int16 = 3,
    Uint32 = 4,
    Int32 = 5,
    Float32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    Uint64 = 10,
    Int64 = 11,
    Float64 = 12,
};

std::string_view value_type_name(ValueType type);

// Bytes of one value of a fixed-size type; 0 for String and Array.
uint32_t value_type_bytes(ValueType type);

bool is_integer(ValueType type);

// The integer of a fixed-size integer type at `data`; nullopt for another type or a negative value.
std::optional<uint64_t> read_unsigned(ValueType type, const std::byte* data);

// One key and its value. Strings inside have been checked to lie within the file.
struct Entry {
    std::string_view key;
    ValueType type = ValueType::Uint8;
    ValueType element_type = ValueType::Uint8;  // of an array; else equal to `type`
    uint64_t count = 1;                         // elements of an array; else 1
    const std::byte* data = nullptr;            // first element, unaligned
};

struct Header {
    std::vector<Entry> entries;       // in file order
    std::vector<TensorInfo> tensors;  // in file order, offsets from the start of the file
    uint64_t header_bytes = 0;        // magic to the end of the tensor index
};

// Limits no real file comes near; each is checked besides the bytes that remain.
inline constexpr uint64_t kEntriesMax = 1 << 20;
inline constexpr uint64_t kTensorsMax = 1 << 20;
inline constexpr uint64_t kKeyBytesMax = 65535;       // the format's own limit
inline constexpr uint64_t kTensorNameBytesMax = 255;  // the format says 64; some writers exceed it
inline constexpr uint64_t kAlignmentMax = 1 << 20;
inline constexpr uint32_t kArrayDepthMax = 4;

// Parses and checks the header of a file whose whole contents are `bytes`; `path` is only named in
// errors. Throws as File::open. The result points into `bytes`.
Header parse_header(std::span<const std::byte> bytes, const std::string& path);

}  // namespace strata::gguf
