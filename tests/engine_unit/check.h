// The test runner of the C++ units: TEST(name) { CHECK(condition, context...); } in any number,
// then one CHECK_MAIN. A failed check prints the condition with its context and ends its test;
// arguments of the program select tests by name.
#pragma once

#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace strata::testing {

struct Failed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

template <class... Context>
[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* what,
                               const Context&... context) {
    std::ostringstream text;
    text << file << ":" << line << ": " << what;
    ((text << " | " << context), ...);
    throw Failed(text.str());
}

inline int run_tests(int count, char** names) {
    int failed = 0;
    for (const Test& test : tests()) {
        bool is_wanted = count <= 1;
        for (int i = 1; i < count; ++i) is_wanted |= std::strcmp(names[i], test.name) == 0;
        if (!is_wanted) continue;
        try {
            test.run();
            std::printf("ok     %s\n", test.name);
        } catch (const std::exception& failure) {
            ++failed;
            std::printf("FAILED %s: %s\n", test.name, failure.what());
        }
        std::fflush(stdout);
    }
    return failed == 0 ? 0 : 1;
}

}  // namespace strata::testing

#define TEST(name)                                                                    \
    static void test_##name();                                                        \
    static const ::strata::testing::Registered registered_##name(#name, test_##name); \
    static void test_##name()
#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition))                                                   \
            ::strata::testing::check_failed(                                \
                __FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
    } while (false)
#define CHECK_MAIN                                         \
    int main(int count, char** names) {                    \
        return ::strata::testing::run_tests(count, names); \
    }
