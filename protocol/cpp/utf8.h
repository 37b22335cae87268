// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace strata::protocol {

// Length of the valid character at the start of `text`, or 0 where there is none.
size_t utf8_char(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace strata::protocol
