// Untrusted text made safe to show: what comes out is valid UTF-8 without control characters, so
// it can go into a log line or a protocol string whatever a file or a peer put in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strata {

// True when `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view text);

// True when `text` is non-empty, well-formed UTF-8 and has no control characters (C0, DEL, C1).
bool is_printable(std::string_view text);

// `text` with bytes of malformed UTF-8 and control characters written as \xNN; cut with "..."
// where the result would exceed `bytes_max` (plus the dots).
std::string printable(std::string_view text, size_t bytes_max = 200);

}  // namespace strata
