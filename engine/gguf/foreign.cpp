// Signatures of the files that people hand in by mistake, most specific first.
#include "engine/gguf/foreign.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/printable.h"

namespace strata::gguf {
namespace {

using std::string_view_literals::operator""sv;

struct Signature {
    std::string_view bytes;
    std::string_view what;
};

constexpr std::array<Signature, 12> kSignatures{{
    {"PK\x03\x04"sv, "it is a zip archive (a PyTorch checkpoint?); convert the model to GGUF"},
    {"version https://git-lfs"sv,
     "it is a Git LFS pointer, not the model itself; fetch it with 'git lfs pull'"},
    {"lmgg"sv, "it is a GGML file from before GGUF; convert the model again"},
    {"fmgg"sv, "it is a GGMF file from before GGUF; convert the model again"},
    {"tjgg"sv, "it is a GGJT file from before GGUF; convert the model again"},
    {"\x1f\x8b"sv, "it is gzip-compressed; unpack it first"},
    {"\x28\xb5\x2f\xfd"sv, "it is zstd-compressed; unpack it first"},
    {"\x89HDF"sv, "it is an HDF5 file; convert the model to GGUF"},
    {"<!DOCTYPE"sv, "it is a web page, so the download went wrong"},
    {"<!doctype"sv, "it is a web page, so the download went wrong"},
    {"<html"sv, "it is a web page, so the download went wrong"},
    {"FUGG"sv, "its magic is byte-swapped"},
}};

// A safetensors file is a u64 length followed by a JSON object of that length.
bool is_safetensors(std::span<const std::byte> bytes) {
    if (bytes.size() < 10 || bytes[8] != std::byte{'{'}) return false;
    uint64_t length = 0;
    for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    return length <= bytes.size() - 8;
}

}  // namespace

std::string describe_foreign(std::span<const std::byte> bytes) {
    if (bytes.empty()) return "it is empty";
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                                std::min<size_t>(bytes.size(), 64));
    for (const Signature& signature : kSignatures)
        if (text.substr(0, signature.bytes.size()) == signature.bytes)
            return std::string(signature.what);
    if (is_safetensors(bytes)) return "it is a safetensors file; convert the model to GGUF";
    if (std::all_of(bytes.begin(),
                    bytes.begin() + static_cast<std::ptrdiff_t>(text.size()),
                    [](std::byte b) { return b == std::byte{0}; }))
        return "it begins with zeros (an unfinished download?)";
    return "it begins with '" + printable(text.substr(0, 4)) + "' instead of 'GGUF'";
}

}  // namespace strata::gguf
