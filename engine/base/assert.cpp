#include "engine/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace strata {

void assert_failed(const char* file, int line, const char* expr, const char* text) {
    std::fprintf(stderr, "assert: %s:%d: %s: %s\n", file, line, expr, text);
    std::fflush(stderr);
    std::abort();
}

}  // namespace strata
