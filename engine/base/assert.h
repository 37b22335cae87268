// Assertions for bugs. The engine runs under a supervisor, so the safe answer to a broken
// invariant is to say what broke and abort; a request can never reach an assertion.
#pragma once

namespace strata {

// Prints "assert: file:line: expr: text" to stderr and aborts.
[[noreturn]] void assert_failed(const char* file, int line, const char* expr, const char* text);

}  // namespace strata

#define STRATA_ASSERT(cond, text)                                       \
    do {                                                                \
        if (!(cond)) [[unlikely]]                                       \
            ::strata::assert_failed(__FILE__, __LINE__, #cond, (text)); \
    } while (false)
