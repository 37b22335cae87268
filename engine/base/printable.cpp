// UTF-8 after RFC 3629, section 4: the table of byte ranges as a decoder of one character.
#include "engine/base/printable.h"

#include <cstdint>

namespace strata {
namespace {

// True when `text` begins with a control character: C0, DEL, or C1 (U+0080..U+009F, which some
// terminals obey).
bool is_control(std::string_view text) {
    const auto first = static_cast<uint8_t>(text[0]);
    if (first < 0x20 || first == 0x7f) return true;
    return first == 0xc2 && text.size() > 1 && static_cast<uint8_t>(text[1]) < 0xa0;
}

// Bytes of the well-formed character at the start of `text`, 0 when it is malformed.
size_t character_bytes(std::string_view text) {
    const auto at = [&](size_t i) -> uint8_t {
        return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
    };
    const auto continues = [&](size_t from, size_t to) {
        for (size_t i = from; i < to; ++i)
            if ((at(i) & 0xc0) != 0x80) return false;
        return true;
    };
    const uint8_t first = at(0);
    const uint8_t second = at(1);
    if (first < 0x80) return 1;
    if (first < 0xc2) return 0;
    if (first < 0xe0) return continues(1, 2) ? 2 : 0;
    if (first < 0xf0) {
        if (first == 0xe0 && second < 0xa0) return 0;  // overlong
        if (first == 0xed && second > 0x9f) return 0;  // surrogate
        return continues(1, 3) ? 3 : 0;
    }
    if (first > 0xf4) return 0;
    if (first == 0xf0 && second < 0x90) return 0;  // overlong
    if (first == 0xf4 && second > 0x8f) return 0;  // beyond U+10FFFF
    return continues(1, 4) ? 4 : 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t n = character_bytes(text);
        if (n == 0) return false;
        text.remove_prefix(n);
    }
    return true;
}

bool is_printable(std::string_view text) {
    if (text.empty() || !is_utf8(text)) return false;
    for (; !text.empty(); text.remove_prefix(character_bytes(text)))
        if (is_control(text)) return false;
    return true;
}

std::string printable(std::string_view text, size_t bytes_max) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string shown;
    while (!text.empty()) {
        const auto first = static_cast<unsigned char>(text[0]);
        const size_t n = character_bytes(text);
        const bool plain = n != 0 && !is_control(text);
        if (shown.size() + (plain ? n : 4) > bytes_max) return shown + "...";
        if (plain) {
            shown.append(text.substr(0, n));
        } else {
            shown.append({'\\', 'x', kDigits[first >> 4], kDigits[first & 15]});
        }
        text.remove_prefix(plain ? n : 1);
    }
    return shown;
}

}  // namespace strata
