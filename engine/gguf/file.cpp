// Opening, and reading of single metadata values; header.cpp has checked every extent before.
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
    MappedFile mapped;  // empty when the caller keeps the bytes
    std::span<const std::byte> bytes;
    std::string path;
    Header header;
    std::vector<uint32_t> entry_order;
    std::vector<uint32_t> tensor_order;

    const Entry* find(std::string_view key) const {
        return find_by_name(header.entries, entry_order, entry_key, key);
    }
    [[noreturn]] void fail(const Entry& entry, const std::string& text) const {
        throw Error(ErrorKind::InvalidRequest,
                    "gguf.metadata",
                    printable(path, 400) + ": metadata key " + printable(entry.key) + " " + text);
    }
    [[noreturn]] void fail_type(const Entry& entry, const char* wanted) const {
        fail(entry, std::string("must be ") + wanted + ", but is " + describe_type(entry));
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

File File::parse(std::span<const std::byte> bytes, const std::string& path) {
    auto impl = std::make_unique<Impl>();
    impl->bytes = bytes;
    impl->path = path;
    impl->header = parse_header(bytes, path);
    impl->entry_order = order_by_name(impl->header.entries, entry_key);
    impl->tensor_order = order_by_name(impl->header.tensors, tensor_name);
    return File(std::move(impl));
}

File File::open(const std::string& path) {
    MappedFile mapped = MappedFile::open(path, "gguf.open");
    File file = parse(mapped.bytes(), path);
    file.impl_->mapped = std::move(mapped);
    return file;
}

const std::string& File::path() const {
    return impl_->path;
}
uint64_t File::file_bytes() const {
    return impl_->bytes.size();
}
const std::vector<TensorInfo>& File::tensors() const {
    return impl_->header.tensors;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
    return find_by_name(impl_->header.tensors, impl_->tensor_order, tensor_name, name);
}

std::span<const std::byte> File::tensor_bytes(const TensorInfo& tensor) const {
    STRATA_ASSERT(
        tensor.offset <= impl_->bytes.size() && tensor.bytes <= impl_->bytes.size() - tensor.offset,
        "the tensor is not one of this file's");
    return impl_->bytes.subspan(static_cast<size_t>(tensor.offset),
                                static_cast<size_t>(tensor.bytes));
}

std::string File::header_sha256() const {
    return sha256_hex(impl_->bytes.first(static_cast<size_t>(impl_->header.header_bytes)));
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
