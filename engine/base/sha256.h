// SHA-256 (FIPS 180-4), to name files by their contents. Not for secrets: no constant-time claims.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace strata {

// Digest of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace strata
