// The parser. Everything read goes through Parser::take, which cannot pass the end of the file;
// everything counted is compared with the bytes that remain before anything is allocated.
#include "engine/gguf/header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/gguf/foreign.h"

namespace strata::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as they lie");

struct ValueTypeInfo {
    std::string_view name;
    uint32_t bytes;
};
constexpr std::array<ValueTypeInfo, 13> kValueTypes{{{"uint8", 1},
                                                     {"int8", 1},
                                                     {"uint16", 2},
                                                     {"int16", 2},
                                                     {"uint32", 4},
                                                     {"int32", 4},
                                                     {"float32", 4},
                                                     {"bool", 1},
                                                     {"string", 0},
                                                     {"array", 0},
                                                     {"uint64", 8},
                                                     {"int64", 8},
                                                     {"float64", 8}}};

// Least bytes an entry can take in the file, so that a count can be judged before it is believed.
constexpr uint64_t kEntryBytesMin = 8 + 1 + 4 + 1;  // key length, key, type, value
constexpr uint64_t kTensorBytesMin =
    8 + 1 + 4 + 8 + 4 + 8;  // name, dimensions, shape, type, offset
constexpr uint64_t kStringBytesMin = 8;
constexpr uint64_t kArrayBytesMin = 4 + 8;
constexpr uint64_t kAlignmentDefault = 32;

std::string number(uint64_t n) {
    return std::to_string(n);
}

class Parser {
  public:
    Parser(std::span<const std::byte> bytes, const std::string& path)
        : bytes_(bytes), path_(path) {}

    Header parse();

  private:
    [[noreturn]] void fail(const char* code,
                           const std::string& text,
                           ErrorKind kind = ErrorKind::InvalidRequest) const {
        throw Error(kind, code, printable(path_, 400) + ": " + text);
    }
    // Begins a part of the header; errors name it: part and, where there is one, key or name.
    void enter(std::string_view part, std::string_view name = {}) {
        part_ = part;
        name_ = name;
    }
    std::string where() const {
        std::string text(part_);
        if (!name_.empty()) text.append(1, ' ').append(printable(name_));
        return text;
    }
    uint64_t remaining() const { return bytes_.size() - at_; }

    const std::byte* take(uint64_t n, std::string_view what);
    template <typename T>
    T read(std::string_view what);
    std::string_view read_string(uint64_t bytes_max, std::string_view what);
    uint64_t read_count(uint64_t max, uint64_t item_bytes_min, std::string_view what);
    ValueType read_value_type(std::string_view what);

    void parse_preamble();
    Entry parse_entry(uint64_t index);
    void skip_values(ValueType type, uint64_t count, uint32_t depth);
    void check_keys(const std::vector<Entry>& entries) const;
    uint64_t alignment_of(const std::vector<Entry>& entries) const;
    TensorInfo parse_tensor(uint64_t index);
    void parse_shape(TensorInfo& tensor);
    void refuse_other_groups(const std::vector<TensorInfo>& tensors,
                             uint64_t start,
                             uint64_t alignment) const;
    void place_tensors(std::vector<TensorInfo>& tensors, uint64_t alignment) const;

    std::span<const std::byte> bytes_;
    const std::string& path_;
    uint64_t at_ = 0;
    std::string_view part_;
    std::string_view name_;
};

const std::byte* Parser::take(uint64_t n, std::string_view what) {
    if (n > remaining()) {
        // The end can lie beyond 2^64 in a hostile file; then the length alone is said.
        const std::string needed = n > UINT64_MAX - at_
                                       ? number(n) + " bytes from byte " + number(at_)
                                       : "bytes " + number(at_) + ".." + number(at_ + n);
        fail("gguf.truncated",
             where() + ": its " + std::string(what) + " needs " + needed + " but the file has " +
                 number(bytes_.size()) + " bytes (truncated download?)");
    }
    const std::byte* p = bytes_.data() + at_;
    at_ += n;
    return p;
}

template <typename T>
T Parser::read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
}

std::string_view Parser::read_string(uint64_t bytes_max, std::string_view what) {
    const auto length = read<uint64_t>(what);
    if (length > bytes_max)
        fail("gguf.limit",
             where() + ": its " + std::string(what) + " has " + number(length) +
                 " bytes; at most " + number(bytes_max) + " are allowed");
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
}

uint64_t Parser::read_count(uint64_t max, uint64_t item_bytes_min, std::string_view what) {
    const auto count = read<uint64_t>(what);
    if (count > max)
        fail("gguf.limit",
             where() + ": " + std::string(what) + " is " + number(count) + "; at most " +
                 number(max) + " are allowed");
    if (count > bytes_.size() / item_bytes_min)
        fail("gguf.truncated",
             where() + ": " + std::string(what) + " is " + number(count) +
                 ", which needs at least " + number(item_bytes_min) +
                 " bytes each, but the file has " + number(bytes_.size()) +
                 " bytes (truncated download?)");
    return count;
}

ValueType Parser::read_value_type(std::string_view what) {
    const auto id = read<uint32_t>(what);
    if (id >= kValueTypes.size())
        fail("gguf.corrupt",
             where() + ": its " + std::string(what) + " is " + number(id) + "; known are 0..12");
    return ValueType{id};
}

void Parser::parse_preamble() {
    enter("header");
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0)
        fail("gguf.magic", "is not a GGUF file: " + describe_foreign(bytes_));
    take(4, "magic");
    const auto version = read<uint32_t>("version");
    if (version == 2 || version == 3) return;
    if ((version & 0xffff) == 0 && version != 0)
        fail("gguf.version",
             "is a big-endian GGUF file; only little-endian files are supported",
             ErrorKind::Unsupported);
    if (version == 1)
        fail("gguf.version",
             "is a GGUF file of version 1, whose lengths have 32 bits; supported are versions 2 "
             "and 3, so convert the model again",
             ErrorKind::Unsupported);
    fail("gguf.version",
         "is a GGUF file of version " + number(version) + "; supported are versions 2 and 3",
         ErrorKind::Unsupported);
}

Entry Parser::parse_entry(uint64_t index) {
    const std::string ordinal = "metadata key #" + number(index);
    enter(ordinal);
    Entry entry;
    entry.key = read_string(kKeyBytesMax, "name");
    if (!is_printable(entry.key))
        fail("gguf.corrupt",
             where() + ": its name '" + printable(entry.key, 64) +
                 "' is empty or not printable UTF-8 text");
    enter("metadata key", entry.key);
    entry.type = entry.element_type = read_value_type("value type");
    if (entry.type == ValueType::Array) {
        entry.element_type = read_value_type("element type");
        entry.count = read<uint64_t>("array length");
    }
    entry.data = bytes_.data() + at_;
    skip_values(entry.element_type, entry.count, 1);
    return entry;
}

// Walks over `count` values so that later reads of them need no checks.
void Parser::skip_values(ValueType type, uint64_t count, uint32_t depth) {
    const auto check_room = [&](uint64_t item_bytes) {
        if (count > remaining() / item_bytes)
            fail("gguf.truncated",
                 where() + ": its " + number(count) + " values of type " +
                     std::string(value_type_name(type)) + " from byte " + number(at_) +
                     " do not fit in the file's " + number(bytes_.size()) +
                     " bytes (truncated download?)");
    };
    if (type == ValueType::String) {
        check_room(kStringBytesMin);
        for (uint64_t i = 0; i < count; ++i) read_string(UINT64_MAX, "string");
    } else if (type == ValueType::Array) {
        if (depth >= kArrayDepthMax)
            fail("gguf.limit",
                 where() + ": its arrays are nested deeper than " + number(kArrayDepthMax));
        check_room(kArrayBytesMin);
        for (uint64_t i = 0; i < count; ++i) {
            const ValueType inner = read_value_type("element type");
            const auto length = read<uint64_t>("array length");
            skip_values(inner, length, depth + 1);
        }
    } else {
        const uint32_t item_bytes = value_type_bytes(type);
        check_room(item_bytes);
        const std::byte* values = take(count * item_bytes, "value");
        if (type == ValueType::Bool)
            for (uint64_t i = 0; i < count; ++i)
                if (std::to_integer<uint8_t>(values[i]) > 1)
                    fail("gguf.corrupt",
                         where() + ": a boolean is " +
                             number(std::to_integer<uint64_t>(values[i])) + " instead of 0 or 1");
    }
}

template <typename T, typename Name>
const T* find_duplicate(const std::vector<T>& items, Name name) {
    std::vector<const T*> sorted(items.size());
    for (size_t i = 0; i < items.size(); ++i) sorted[i] = &items[i];
    std::sort(
        sorted.begin(), sorted.end(), [&](const T* a, const T* b) { return name(*a) < name(*b); });
    const auto found = std::adjacent_find(
        sorted.begin(), sorted.end(), [&](const T* a, const T* b) { return name(*a) == name(*b); });
    return found == sorted.end() ? nullptr : *found;
}

void Parser::check_keys(const std::vector<Entry>& entries) const {
    const Entry* twice = find_duplicate(entries, [](const Entry& e) { return e.key; });
    if (twice != nullptr)
        fail("gguf.corrupt", "metadata key " + printable(twice->key) + " appears twice");
}

uint64_t Parser::alignment_of(const std::vector<Entry>& entries) const {
    for (const Entry& entry : entries) {
        if (entry.key != "general.alignment") continue;
        const std::optional<uint64_t> value = read_unsigned(entry.type, entry.data);
        if (!value)
            fail("gguf.metadata", "metadata key general.alignment is not an unsigned integer");
        if (*value < 8 || *value > kAlignmentMax || !std::has_single_bit(*value))
            fail("gguf.corrupt",
                 "metadata key general.alignment is " + number(*value) +
                     "; it must be a power of two in 8.." + number(kAlignmentMax));
        return *value;
    }
    return kAlignmentDefault;
}

void Parser::parse_shape(TensorInfo& tensor) {
    tensor.dimensions = read<uint32_t>("number of dimensions");
    if (tensor.dimensions < 1 || tensor.dimensions > tensor.shape.size())
        fail("gguf.corrupt",
             where() + ": has " + number(tensor.dimensions) + " dimensions; allowed are 1..4");
    // Below 2^60 elements no later product with a size in bytes can overflow 64 bits.
    constexpr uint64_t kElementsMax = uint64_t{1} << 60;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor.dimensions; ++i) {
        tensor.shape[i] = read<uint64_t>("shape");
        if (tensor.shape[i] == 0)
            fail("gguf.corrupt", where() + ": dimension " + number(i) + " is 0");
        if (tensor.shape[i] > kElementsMax / elements)
            fail("gguf.corrupt",
                 where() + ": dimension " + number(i) + " is " + number(tensor.shape[i]) +
                     ", which makes more than 2^60 elements");
        elements *= tensor.shape[i];
    }
}

TensorInfo Parser::parse_tensor(uint64_t index) {
    const std::string ordinal = "tensor #" + number(index);
    enter(ordinal);
    TensorInfo tensor;
    const std::string_view name = read_string(kTensorNameBytesMax, "name");
    if (!is_printable(name))
        fail("gguf.corrupt",
             where() + ": its name '" + printable(name, 64) +
                 "' is empty or not printable UTF-8 text");
    tensor.name = name;
    enter("tensor", name);
    parse_shape(tensor);
    tensor.ggml_type = read<uint32_t>("type");
    tensor.offset = read<uint64_t>("offset");
    const std::optional<DTypeInfo> info = find_dtype(tensor.ggml_type);
    if (!info) return tensor;
    if (tensor.shape[0] % info->block_elements != 0)
        fail("gguf.corrupt",
             where() + ": its rows have " + number(tensor.shape[0]) + " elements, no multiple of " +
                 number(info->block_elements) + ", the block of " + std::string(info->name));
    tensor.type = info->type;
    tensor.bytes = tensor.elements() / info->block_elements * info->block_bytes;
    return tensor;
}

// Under the type number of q2_0, whose blocks have 64 weights in ggml (18 bytes), an older fork
// stored blocks of 128 (34 bytes). Nothing in the header says so but the room of its tensors; ggml
// refuses such a file, too. Offsets are relative to `start` here.
void Parser::refuse_other_groups(const std::vector<TensorInfo>& tensors,
                                 uint64_t start,
                                 uint64_t alignment) const {
    constexpr uint64_t kOtherElements = 128;
    constexpr uint64_t kOtherBytes = 34;
    if (start > bytes_.size()) return;
    std::vector<uint64_t> ends = {bytes_.size() - start};
    for (const TensorInfo& tensor : tensors) ends.push_back(tensor.offset);
    std::sort(ends.begin(), ends.end());
    for (const TensorInfo& tensor : tensors) {
        if (tensor.type != DType::Q2_0 || tensor.shape[0] % kOtherElements != 0) continue;
        const auto end = std::upper_bound(ends.begin(), ends.end(), tensor.offset);
        if (end == ends.end()) continue;
        const uint64_t room = *end - tensor.offset;
        const uint64_t other = tensor.elements() / kOtherElements * kOtherBytes;
        if (room >= tensor.bytes || room < other || room - other >= alignment) continue;
        fail("model.tensor_type",
             "tensor " + printable(tensor.name) + ": has room for q2_0 in groups of 128 weights (" +
                 number(other) + " bytes), as an older fork of llama.cpp wrote them; q2_0 has " +
                 "groups of 64 (" + number(tensor.bytes) + " bytes): take the file with these");
    }
}

// Makes offsets absolute and checks every extent against the file and the other tensors.
void Parser::place_tensors(std::vector<TensorInfo>& tensors, uint64_t alignment) const {
    const uint64_t start = (at_ + alignment - 1) / alignment * alignment;
    refuse_other_groups(tensors, start, alignment);
    for (TensorInfo& tensor : tensors) {
        const std::string name = "tensor " + printable(tensor.name);
        if (tensor.offset % alignment != 0)
            fail("gguf.corrupt",
                 name + ": its offset " + number(tensor.offset) +
                     " is no multiple of the alignment " + number(alignment));
        if (tensor.offset > UINT64_MAX / 2 || tensor.bytes > bytes_.size() ||
            start + tensor.offset > bytes_.size() - tensor.bytes) {
            const bool sayable = tensor.offset <= UINT64_MAX / 2;
            fail(
                "gguf.truncated",
                name + ": needs " +
                    (sayable ? "bytes " + number(start + tensor.offset) + ".." +
                                   number(start + tensor.offset + tensor.bytes)
                             : number(tensor.bytes) + " bytes at offset " + number(tensor.offset)) +
                    " but the file has " + number(bytes_.size()) + " bytes (truncated download?)");
        }
        tensor.offset += start;
    }
    std::vector<const TensorInfo*> sorted(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) sorted[i] = &tensors[i];
    std::sort(sorted.begin(), sorted.end(), [](const TensorInfo* a, const TensorInfo* b) {
        return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
    });
    for (size_t i = 1; i < sorted.size(); ++i) {
        const TensorInfo& a = *sorted[i - 1];
        const TensorInfo& b = *sorted[i];
        if (b.offset < a.offset + a.bytes)
            fail("gguf.corrupt",
                 "tensor " + printable(b.name) + " at byte " + number(b.offset) +
                     " overlaps tensor " + printable(a.name) + ", which ends at byte " +
                     number(a.offset + a.bytes));
    }
}

Header Parser::parse() {
    Header header;
    parse_preamble();
    const uint64_t tensor_count = read_count(kTensorsMax, kTensorBytesMin, "number of tensors");
    const uint64_t entry_count = read_count(kEntriesMax, kEntryBytesMin, "number of metadata keys");

    header.entries.reserve(static_cast<size_t>(entry_count));
    for (uint64_t i = 0; i < entry_count; ++i) header.entries.push_back(parse_entry(i));
    check_keys(header.entries);
    const uint64_t alignment = alignment_of(header.entries);

    header.tensors.reserve(static_cast<size_t>(tensor_count));
    for (uint64_t i = 0; i < tensor_count; ++i) header.tensors.push_back(parse_tensor(i));
    const TensorInfo* twice = find_duplicate(
        header.tensors, [](const TensorInfo& t) { return std::string_view(t.name); });
    if (twice != nullptr)
        fail("gguf.corrupt", "tensor " + printable(twice->name) + " appears twice");
    header.header_bytes = at_;
    place_tensors(header.tensors, alignment);
    return header;
}

}  // namespace

std::string_view value_type_name(ValueType type) {
    return kValueTypes[static_cast<size_t>(type)].name;
}

uint32_t value_type_bytes(ValueType type) {
    return kValueTypes[static_cast<size_t>(type)].bytes;
}

bool is_integer(ValueType type) {
    return type <= ValueType::Int32 || type == ValueType::Uint64 || type == ValueType::Int64;
}

std::optional<uint64_t> read_unsigned(ValueType type, const std::byte* data) {
    if (!is_integer(type)) return std::nullopt;
    uint64_t value = 0;
    const uint32_t bytes = value_type_bytes(type);
    std::memcpy(&value, data, bytes);
    const bool is_signed = type == ValueType::Int8 || type == ValueType::Int16 ||
                           type == ValueType::Int32 || type == ValueType::Int64;
    if (is_signed && value >> (8 * bytes - 1) != 0) return std::nullopt;
    return value;
}

Header parse_header(std::span<const std::byte> bytes, const std::string& path) {
    return Parser(bytes, path).parse();
}

}  // namespace strata::gguf
