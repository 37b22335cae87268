// Recognises files that are not GGUF by their first bytes, so that the error says what was given.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace strata::gguf {

// One clause after "is not a GGUF file: ", for bytes that do not begin with GGUF's magic.
std::string describe_foreign(std::span<const std::byte> bytes);

}  // namespace strata::gguf
