#include "engine/loop/resident.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace strata {

ResidentMeter::ResidentMeter() {
#if defined(__linux__)
    fd_ = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    page_bytes_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
#endif
}

ResidentMeter::~ResidentMeter() {
    if (fd_ >= 0) close(fd_);
}

uint64_t ResidentMeter::bytes() const {
    if (fd_ < 0) return 0;
    char text[128];  // seven numbers; the second is the resident set in pages
    const ssize_t count = pread(fd_, text, sizeof text, 0);
    if (count <= 0) return 0;
    const char* end = text + count;
    const char* space = std::find<const char*>(text, end, ' ');
    if (space == end) return 0;
    uint64_t pages = 0;
    const bool is_number = std::from_chars(space + 1, end, pages).ec == std::errc();
    return is_number ? pages * page_bytes_ : 0;
}

}  // namespace strata
