#include "engine/gguf/split.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace strata::gguf {

namespace {

constexpr size_t kMissingListed = 4;

[[noreturn]] void fail(const std::string& path,
                       const char* code,
                       const std::string& text,
                       ErrorKind kind = ErrorKind::InvalidRequest) {
    throw Error(kind, code, printable(path, 400) + ": " + text);
}

const Entry* find_entry(const Header& header, std::string_view key) {
    for (const Entry& entry : header.entries)
        if (entry.key == key) return &entry;
    return nullptr;
}

std::optional<uint64_t> find_count(const FileBytes& file,
                                   const Header& header,
                                   std::string_view key) {
    const Entry* entry = find_entry(header, key);
    if (entry == nullptr) return std::nullopt;
    const std::optional<uint64_t> value = read_unsigned(entry->type, entry->data);
    if (!value)
        fail(file.path,
             "gguf.metadata",
             "metadata key " + std::string(key) + " is not an unsigned integer");
    return value;
}

struct Split {
    uint64_t index = 0;
    uint64_t count = 1;
    std::optional<uint64_t> tensors;  // of all parts
};

Split read_split(const FileBytes& file, const Header& header) {
    Split split;
    split.count = find_count(file, header, "split.count").value_or(1);
    split.index = find_count(file, header, "split.no").value_or(0);
    split.tensors = find_count(file, header, "split.tensors.count");
    if (split.count > kShardsMax)
        fail(file.path,
             "gguf.limit",
             "metadata key split.count is " + std::to_string(split.count) + "; at most " +
                 std::to_string(kShardsMax) + " are allowed");
    if (split.count <= 1) split = {};
    if (split.index >= split.count)
        fail(file.path,
             "gguf.split_foreign",
             "metadata key split.no is " + std::to_string(split.index) + " of " +
                 std::to_string(split.count) + " parts (split.count)");
    return split;
}

std::string part_text(uint64_t index, uint64_t count) {
    return "part " + std::to_string(index + 1) + " of " + std::to_string(count);
}

std::string shard_suffix(uint64_t index, uint64_t count) {
    char text[64];
    std::snprintf(text,
                  sizeof text,
                  "-%05u-of-%05u.gguf",
                  static_cast<unsigned>(index + 1),
                  static_cast<unsigned>(count));
    return text;
}

// `path` of one part with the number of another; nothing where it is not named as that part.
std::optional<std::string> shard_path(std::string_view path, const Split& split, uint64_t index) {
    const std::string own = shard_suffix(split.index, split.count);
    if (!path.ends_with(own)) return std::nullopt;
    return std::string(path.substr(0, path.size() - own.size())) + shard_suffix(index, split.count);
}

// The architecture's name where the file says one as a string; else empty.
std::string_view architecture_of(const Header& header) {
    const Entry* entry = find_entry(header, "general.architecture");
    if (entry == nullptr || entry->type != ValueType::String) return {};
    uint64_t length = 0;
    std::memcpy(&length, entry->data, sizeof length);
    return {reinterpret_cast<const char*>(entry->data + sizeof length),
            static_cast<size_t>(length)};
}

void check_architecture(const char* code,
                        const FileBytes& first,
                        const Header& first_header,
                        const FileBytes& other,
                        const Header& header) {
    const std::string_view needed = architecture_of(first_header);
    const std::string_view name = architecture_of(header);
    if (!name.empty() && name != needed)
        fail(other.path,
             code,
             "its architecture is \"" + printable(name, 64) + "\", that of " +
                 printable(first.path, 400) + " is \"" + printable(needed, 64) + "\"");
}

}  // namespace

std::vector<std::string> other_shards(const FileBytes& first, const Header& header) {
    const Split split = read_split(first, header);
    if (split.count == 1) return {};
    if (split.index != 0) {
        const std::optional<std::string> name = shard_path(first.path, split, 0);
        fail(first.path,
             "gguf.split",
             "is " + part_text(split.index, split.count) +
                 " of a split model; name its first part" +
                 (name ? ", " + printable(*name, 400) : ""));
    }
    std::vector<std::string> paths;
    std::string missing;
    size_t missing_count = 0;
    for (uint64_t index = 1; index < split.count; ++index) {
        const std::optional<std::string> path = shard_path(first.path, split, index);
        if (!path)
            fail(first.path,
                 "gguf.split",
                 "is the first of " + std::to_string(split.count) +
                     " parts (split.count), so its name must end in " +
                     shard_suffix(0, split.count) + " for the others to be found");
        std::error_code ignored;
        if (!std::filesystem::exists(*path, ignored) && ++missing_count <= kMissingListed)
            missing += (missing.empty() ? "" : ", ") + printable(*path, 400);
        paths.push_back(*path);
    }
    if (missing_count > kMissingListed)
        missing += " and " + std::to_string(missing_count - kMissingListed) + " more";
    if (missing_count > 0)
        fail(first.path,
             "gguf.split_missing",
             "of the " + std::to_string(split.count) + " parts of this split model " + missing +
                 (missing_count == 1 ? " is" : " are") + " not there");
    return paths;
}

void check_shards(const std::vector<FileBytes>& files, const std::vector<Header>& headers) {
    const Split first = read_split(files.front(), headers.front());
    if (first.index != 0 || first.count != files.size())
        fail(files.front().path,
             "gguf.split",
             "is " + part_text(first.index, first.count) + " of a split model, of which " +
                 std::to_string(files.size()) + " were given; all are needed, the first one first");
    uint64_t tensors = headers.front().tensors.size();
    for (size_t i = 1; i < files.size(); ++i) {
        const Split split = read_split(files[i], headers[i]);
        if (split.count != first.count || split.index != i)
            fail(files[i].path,
                 "gguf.split_foreign",
                 "is " + part_text(split.index, split.count) +
                     " by its metadata, in the place of " + part_text(i, first.count));
        if (split.tensors != first.tensors)
            fail(files[i].path,
                 "gguf.split_foreign",
                 "is of another split model: its split.tensors.count is not that of the first "
                 "part");
        check_architecture(
            "gguf.split_foreign", files.front(), headers.front(), files[i], headers[i]);
        tensors += headers[i].tensors.size();
    }
    if (tensors > kTensorsMax)
        fail(files.front().path,
             "gguf.limit",
             "its parts have " + std::to_string(tensors) + " tensors; at most " +
                 std::to_string(kTensorsMax) + " are allowed");
    if (first.tensors && *first.tensors != tensors)
        fail(files.front().path,
             "gguf.split_foreign",
             "its split.tensors.count is " + std::to_string(*first.tensors) + ", its " +
                 std::to_string(first.count) + " parts have " + std::to_string(tensors) +
                 " tensors: a part is of another model");
}

void check_companion(const std::vector<FileBytes>& files, const std::vector<Header>& headers) {
    const FileBytes& file = files.back();
    const Split split = read_split(file, headers.back());
    if (split.count > 1)
        fail(file.path,
             "gguf.companion",
             "is " + part_text(split.index, split.count) +
                 " of a split model; the parts of one are found by the name of the first and need "
                 "not be named");
    check_architecture("gguf.companion", files.front(), headers.front(), file, headers.back());
}

}  // namespace strata::gguf
