// Opening, joining of parts, and reading of single metadata values; header.cpp has checked every
// extent before.
#include "engine/gguf/file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/base/printable.h"
#include "engine/base/sha256.h"
#include "engine/gguf/header.h"
#include "engine/gguf/split.h"

namespace strata::gguf {
namespace {

// Indices of `items` in ascending order of name: lookups stay logarithmic whatever the names are.
template <typename T, typename Name>
std::vector<uint32_t> order_by_name(const std::vector<T>& items, Name name) {
    std::vector<uint32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return name(items[a]) < name(items[b]);
    });
    return order;
}

template <typename T, typename Name>
const T* find_by_name(const std::vector<T>& items,
                      const std::vector<uint32_t>& order,
                      Name name,
                      std::string_view wanted) {
    const auto at =
        std::lower_bound(order.begin(), order.end(), wanted, [&](uint32_t i, std::string_view key) {
            return name(items[i]) < key;
        });
    return at != order.end() && name(items[*at]) == wanted ? &items[*at] : nullptr;
}

std::string_view entry_key(const Entry& entry) {
    return entry.key;
}
std::string_view tensor_name(const TensorInfo& tensor) {
    return tensor.name;
}

std::string describe_type(const Entry& entry) {
    if (entry.type != ValueType::Array) return std::string(value_type_name(entry.type));
    return "array of " + std::to_string(entry.count) + " " +
           std::string(value_type_name(entry.element_type));
}

std::string_view string_at(const std::byte* data) {
    uint64_t length = 0;
    std::memcpy(&length, data, sizeof length);
    return {reinterpret_cast<const char*>(data + sizeof length), static_cast<size_t>(length)};
}

// A negative integer as text, for the error.
std::string signed_text(ValueType type, const std::byte* data) {
    uint64_t raw = 0;
    const uint32_t bytes = value_type_bytes(type);
    std::memcpy(&raw, data, bytes);
    const uint32_t shift = 64 - 8 * bytes;
    return std::to_string(static_cast<int64_t>(raw << shift) >> shift);
}

}  // namespace

struct File::Impl {
    struct Part {
        MappedFile mapped;  // empty when the caller keeps the bytes
        FileBytes file;
        uint64_t header_bytes = 0;
    };
    std::vector<Part> parts;
    Header header;  // metadata of the first part, tensors of all
    std::vector<uint32_t> entry_order;
    std::vector<uint32_t> tensor_order;

    const Entry* find(std::string_view key) const {
        return find_by_name(header.entries, entry_order, entry_key, key);
    }
    [[noreturn]] void fail(const Entry& entry, const std::string& text) const {
        throw Error(ErrorKind::InvalidRequest,
                    "gguf.metadata",
                    printable(parts.front().file.path, 400) + ": metadata key " +
                        printable(entry.key) + " " + text);
    }
    [[noreturn]] void fail_type(const Entry& entry, const char* wanted) const {
        fail(entry, std::string("must be ") + wanted + ", but is " + describe_type(entry));
    }
    // Names are unique within a part; two parts must not hold one tensor either.
    void check_table() const {
        for (size_t i = 1; i < tensor_order.size(); ++i) {
            const TensorInfo& a = header.tensors[tensor_order[i - 1]];
            const TensorInfo& b = header.tensors[tensor_order[i]];
            if (a.name != b.name) continue;
            throw Error(ErrorKind::InvalidRequest,
                        "gguf.duplicate",
                        printable(parts[std::max(a.part, b.part)].file.path, 400) + ": tensor " +
                            printable(a.name) + " is also in " +
                            printable(parts[std::min(a.part, b.part)].file.path, 400));
        }
    }
    uint64_t read_uint(const Entry& entry, uint64_t index) const {
        const std::byte* data = entry.data + index * value_type_bytes(entry.element_type);
        const std::optional<uint64_t> value = read_unsigned(entry.element_type, data);
        if (!value)
            fail(entry,
                 "is " + signed_text(entry.element_type, data) + "; it must not be negative");
        return *value;
    }
};

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

File File::join(std::vector<FileBytes> files, std::vector<Header> headers) {
    auto impl = std::make_unique<Impl>();
    for (size_t i = 0; i < files.size(); ++i)
        impl->parts.push_back({MappedFile(), std::move(files[i]), headers[i].header_bytes});
    impl->header = std::move(headers.front());
    for (uint32_t part = 1; part < headers.size(); ++part) {
        for (TensorInfo& tensor : headers[part].tensors) {
            tensor.part = part;
            impl->header.tensors.push_back(std::move(tensor));
        }
    }
    impl->entry_order = order_by_name(impl->header.entries, entry_key);
    impl->tensor_order = order_by_name(impl->header.tensors, tensor_name);
    impl->check_table();
    return File(std::move(impl));
}

File File::parse(std::vector<FileBytes> parts) {
    STRATA_ASSERT(!parts.empty(), "a model has at least one file");
    std::vector<Header> headers;
    for (const FileBytes& part : parts) headers.push_back(parse_header(part.bytes, part.path));
    check_shards(parts, headers);
    return join(std::move(parts), std::move(headers));
}

File File::parse(std::span<const std::byte> bytes, const std::string& path) {
    return parse(std::vector<FileBytes>{{bytes, path}});
}

File File::open(const std::string& path) {
    return open_with(path, "");
}

File File::open_with(const std::string& path, const std::string& companion) {
    std::vector<MappedFile> mapped;
    std::vector<FileBytes> files;
    std::vector<Header> headers;
    const auto add = [&](const std::string& name, const char* code) {
        mapped.push_back(MappedFile::open(name, code));
        files.push_back({mapped.back().bytes(), name});
        headers.push_back(parse_header(files.back().bytes, name));
    };
    add(path, "gguf.open");
    for (const std::string& shard : other_shards(files.front(), headers.front()))
        add(shard, "gguf.split_missing");
    check_shards(files, headers);
    if (!companion.empty()) {
        add(companion, "gguf.open");
        check_companion(files, headers);
    }
    File file = join(std::move(files), std::move(headers));
    for (size_t i = 0; i < mapped.size(); ++i) file.impl_->parts[i].mapped = std::move(mapped[i]);
    return file;
}

const std::string& File::path() const {
    return part_path(0);
}

uint64_t File::file_bytes() const {
    uint64_t bytes = 0;
    for (const Impl::Part& part : impl_->parts) bytes += part.file.bytes.size();
    return bytes;
}

uint32_t File::parts() const {
    return static_cast<uint32_t>(impl_->parts.size());
}

std::span<const std::byte> File::part_bytes(uint32_t part) const {
    STRATA_ASSERT(part < impl_->parts.size(), "the part is one of the model's");
    return impl_->parts[part].file.bytes;
}

const std::string& File::part_path(uint32_t part) const {
    STRATA_ASSERT(part < impl_->parts.size(), "the part is one of the model's");
    return impl_->parts[part].file.path;
}

const std::vector<TensorInfo>& File::tensors() const {
    return impl_->header.tensors;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
    return find_by_name(impl_->header.tensors, impl_->tensor_order, tensor_name, name);
}

std::span<const std::byte> File::tensor_bytes(const TensorInfo& tensor) const {
    const std::span<const std::byte> bytes = part_bytes(tensor.part);
    STRATA_ASSERT(tensor.offset <= bytes.size() && tensor.bytes <= bytes.size() - tensor.offset,
                  "the tensor is not one of this file's");
    return bytes.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
}

std::string File::header_sha256() const {
    const auto head = [](const Impl::Part& part) {
        return part.file.bytes.first(static_cast<size_t>(part.header_bytes));
    };
    if (impl_->parts.size() == 1) return sha256_hex(head(impl_->parts.front()));
    std::vector<std::byte> all;
    for (const Impl::Part& part : impl_->parts) {
        const std::span<const std::byte> bytes = head(part);
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return sha256_hex(all);
}

bool File::has(std::string_view key) const {
    return impl_->find(key) != nullptr;
}

std::optional<uint64_t> File::find_uint(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (!is_integer(entry->type)) impl_->fail_type(*entry, "an unsigned integer");
    return impl_->read_uint(*entry, 0);
}

std::optional<double> File::find_float(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    double value = 0;
    if (entry->type == ValueType::Float32) {
        float narrow = 0;
        std::memcpy(&narrow, entry->data, sizeof narrow);
        value = double{narrow};
    } else if (entry->type == ValueType::Float64) {
        std::memcpy(&value, entry->data, sizeof value);
    } else {
        impl_->fail_type(*entry, "a float");
    }
    if (!std::isfinite(value)) impl_->fail(*entry, "is not a finite number");
    return value;
}

std::optional<bool> File::find_bool(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (entry->type != ValueType::Bool) impl_->fail_type(*entry, "a bool");
    return *entry->data != std::byte{0};
}

std::optional<std::string_view> File::find_string(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (entry->type != ValueType::String) impl_->fail_type(*entry, "a string");
    const std::string_view value = string_at(entry->data);
    if (!is_utf8(value)) impl_->fail(*entry, "is not valid UTF-8: '" + printable(value, 40) + "'");
    return value;
}

std::optional<std::vector<uint64_t>> File::find_uint_array(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (!is_integer(entry->element_type)) impl_->fail_type(*entry, "an array of unsigned integers");
    std::vector<uint64_t> values(static_cast<size_t>(entry->count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = impl_->read_uint(*entry, i);
    return values;
}

std::optional<std::vector<bool>> File::find_bool_array(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    const bool is_bool = entry->element_type == ValueType::Bool;
    if (!is_bool && !is_integer(entry->element_type)) impl_->fail_type(*entry, "an array of bools");
    std::vector<bool> values(static_cast<size_t>(entry->count));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = is_bool ? entry->data[i] != std::byte{0} : impl_->read_uint(*entry, i) != 0;
    return values;
}

std::optional<std::vector<std::string_view>> File::find_string_array(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (entry->type != ValueType::Array || entry->element_type != ValueType::String)
        impl_->fail_type(*entry, "an array of strings");
    std::vector<std::string_view> values;
    values.reserve(static_cast<size_t>(entry->count));
    const std::byte* at = entry->data;
    for (uint64_t i = 0; i < entry->count; ++i) {
        values.push_back(string_at(at));
        at += sizeof(uint64_t) + values.back().size();
    }
    return values;
}

std::optional<uint64_t> File::find_array_length(std::string_view key) const {
    const Entry* entry = impl_->find(key);
    if (entry == nullptr) return std::nullopt;
    if (entry->type != ValueType::Array) impl_->fail_type(*entry, "an array");
    return entry->count;
}

}  // namespace strata::gguf
