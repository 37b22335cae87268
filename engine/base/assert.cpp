#include "engine/base/assert.h"

#include <cstdio>
#include <cstdlib>

#include "engine/base/crash_handler.h"

namespace strata {

void assert_failed(const char* file, int line, const char* expr, const char* text) {
    char line_text[sizeof(BeaconPage::assert_text)];
    std::snprintf(line_text, sizeof(line_text), "assert: %s:%d: %s: %s", file, line, expr, text);
    note_assert(line_text);
    std::fprintf(stderr, "%s\n", line_text);
    std::fflush(stderr);
    std::abort();
}

}  // namespace strata
