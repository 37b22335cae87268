// Fuzz target of the GGUF reader: any bytes are refused with an Error or read in full. Touches
// every tensor byte range and reads every key of interest as every type, so a header that was
// accepted wrongly shows as a sanitizer report.
// The same bytes are edits to a part of a split model.
// Inputs that begin with 'G' are files; all others are lists of edits to a small valid file, so
// that also blind mutations get behind the magic.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/gguf/file.h"

namespace {

constexpr std::array<std::string_view, 6> kKeys{"general.architecture",
                                                "general.alignment",
                                                "split.count",
                                                "llama.block_count",
                                                "tokenizer.ggml.tokens",
                                                "k"};

using Bytes = std::vector<uint8_t>;

template <typename T>
void put(Bytes& out, T value) {
    const size_t at = out.size();
    out.resize(at + sizeof value);
    std::memcpy(&out[at], &value, sizeof value);
}

void put_text(Bytes& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out.insert(out.end(), text.begin(), text.end());
}

void put_key(Bytes& out, std::string_view key, uint32_t type) {
    put_text(out, key);
    put(out, type);
}

// A valid file with every kind of value, a nested array and two tensors (f32 and q8_0).
Bytes valid_file() {
    Bytes out{'G', 'G', 'U', 'F'};
    put<uint32_t>(out, 3);
    put<uint64_t>(out, 2);
    put<uint64_t>(out, 6);
    put_key(out, "general.architecture", 8);
    put_text(out, "llama");
    put_key(out, "general.alignment", 4);
    put<uint32_t>(out, 8);
    put_key(out, "split.count", 2);
    put<uint16_t>(out, 1);
    put_key(out, "llama.block_count", 11);
    put<int64_t>(out, 2);
    put_key(out, "tokenizer.ggml.tokens", 9);
    put<uint32_t>(out, 8);
    put<uint64_t>(out, 2);
    put_text(out, "a");
    put_text(out, "bc");
    put_key(out, "k", 9);  // [[1.0f]]
    put<uint32_t>(out, 9);
    put<uint64_t>(out, 1);
    put<uint32_t>(out, 6);
    put<uint64_t>(out, 1);
    put<float>(out, 1.0f);
    put_text(out, "one");
    put<uint32_t>(out, 2);
    put<uint64_t>(out, 32);
    put<uint64_t>(out, 1);
    put<uint32_t>(out, 8);
    put<uint64_t>(out, 0);
    put_text(out, "two");
    put<uint32_t>(out, 1);
    put<uint64_t>(out, 2);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, 40);
    out.resize((out.size() + 7) / 8 * 8 + 48);
    return out;
}

// An edit has kEditBytes: where (u16), what (u8), and a value of 8 bytes.
constexpr size_t kEditBytes = 11;

void edit(Bytes& file, std::span<const uint8_t> edits) {
    for (; edits.size() >= kEditBytes && !file.empty(); edits = edits.subspan(kEditBytes)) {
        const size_t at = (edits[0] | edits[1] << 8) % file.size();
        const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
        const size_t room = file.size() - at;
        switch (edits[2] % 5) {
            case 0:
                file[at] = edits[3];
                break;
            case 1:
                std::memcpy(&file[at], &edits[3], std::min<size_t>(8, room));
                break;
            case 2:
                std::memcpy(&file[at], &edits[3], std::min<size_t>(4, room));
                break;
            case 3:
                file.insert(place, edits.begin() + 3, edits.begin() + 3 + edits[3] % 8);
                break;
            default:
                file.erase(place,
                           place + static_cast<std::ptrdiff_t>(std::min<size_t>(edits[3], room)));
        }
    }
}

Bytes edited_file(std::span<const uint8_t> edits) {
    Bytes file = valid_file();
    edit(file, edits);
    return file;
}

// A key of another type is an Error of its own; it must not hide what comes after.
template <typename Read>
void try_read(Read read) {
    try {
        read();
    } catch (const strata::Error&) {
    }
}

void read_keys(const strata::gguf::File& file) {
    for (const std::string_view key : kKeys) {
        try_read([&] { file.find_uint(key); });
        try_read([&] { file.find_float(key); });
        try_read([&] { file.find_bool(key); });
        try_read([&] { file.find_string(key); });
        try_read([&] { file.find_uint_array(key); });
        try_read([&] { file.find_array_length(key); });
        try_read([&] {
            size_t sum = 0;
            if (const auto strings = file.find_string_array(key))
                for (const std::string_view text : *strings)
                    for (const char c : text) sum += static_cast<unsigned char>(c);
            volatile size_t sink = sum;
            static_cast<void>(sink);
        });
    }
}

void read_tensors(const strata::gguf::File& file) {
    unsigned sum = 0;
    for (const strata::gguf::TensorInfo& tensor : file.tensors()) {
        const std::span<const std::byte> bytes = file.tensor_bytes(tensor);
        if (!bytes.empty())
            sum +=
                std::to_integer<unsigned>(bytes.front()) + std::to_integer<unsigned>(bytes.back());
        if (file.find_tensor(tensor.name) != &tensor) __builtin_trap();
    }
    volatile unsigned sink = sum;
    static_cast<void>(sink);
}

// A part of a split model of three: two pairs of metadata, one tensor of its own.
Bytes valid_shard(uint16_t index) {
    Bytes out{'G', 'G', 'U', 'F'};
    put<uint32_t>(out, 3);
    put<uint64_t>(out, 1);
    put<uint64_t>(out, 3);
    put_key(out, "split.no", 2);
    put<uint16_t>(out, index);
    put_key(out, "split.count", 2);
    put<uint16_t>(out, 3);
    put_key(out, "split.tensors.count", 5);
    put<int32_t>(out, 3);
    put_text(out, std::string_view("abc").substr(index, 1));
    put<uint32_t>(out, 1);
    put<uint64_t>(out, 2);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, 0);
    out.resize((out.size() + 31) / 32 * 32 + 8);
    return out;
}

// Parts of which one is edited, in the order that the input says, possibly one of them twice.
void read_parts(std::span<const uint8_t> data) {
    std::array<Bytes, 3> shards{valid_shard(0), valid_shard(1), valid_shard(2)};
    const size_t broken = data[0] % shards.size();
    edit(shards[broken], data.subspan(2));
    std::vector<strata::gguf::FileBytes> parts;
    for (size_t i = 0; i < shards.size(); ++i) {
        const size_t part = (data[1] & 1u) == 0 ? i : (data[1] >> (2 * i)) % shards.size();
        parts.push_back({std::as_bytes(std::span(shards[part])), "part.gguf"});
    }
    const auto file = strata::gguf::File::parse(std::move(parts));
    read_keys(file);
    read_tensors(file);
    if (file.parts() != shards.size() || file.header_sha256().size() != 64) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // A copy of the exact size: reading one byte too far is then seen.
    const Bytes bytes =
        size > 0 && data[0] == 'G' ? Bytes(data, data + size) : edited_file(std::span(data, size));
    try {
        const auto file = strata::gguf::File::parse(std::as_bytes(std::span(bytes)), "fuzz.gguf");
        read_keys(file);
        read_tensors(file);
        if (file.header_sha256().size() != 64) __builtin_trap();
    } catch (const strata::Error& error) {
        // An untouched file must be read.
        if (size < kEditBytes && (size == 0 || data[0] != 'G')) __builtin_trap();
        if (!error.code().starts_with("gguf.")) __builtin_trap();
    }
    if (size < 2 || data[0] == 'G') return 0;
    try {
        read_parts(std::span(data, size));
    } catch (const strata::Error& error) {
        if (!error.code().starts_with("gguf.")) __builtin_trap();
    }
    return 0;
}
