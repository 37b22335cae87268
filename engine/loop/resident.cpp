#include "engine/loop/resident.h"

#include <unistd.h>

#include <cstdio>

namespace strata {

uint64_t resident_bytes() {
#if defined(__linux__)
    // statm: size and resident set in pages.
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    if (!file) return 0;
    unsigned long long size = 0;
    unsigned long long resident = 0;
    const int fields = std::fscanf(file, "%llu %llu", &size, &resident);
    std::fclose(file);
    if (fields != 2) return 0;
    return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
#else
    return 0;
#endif
}

}  // namespace strata
