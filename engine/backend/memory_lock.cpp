#include "engine/backend/memory_lock.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "engine/backend/host.h"
#include "engine/backend/page_buffer.h"

namespace strata {

namespace {

constexpr uint64_t kPortionBytes = uint64_t{64} << 20;  // between two reports

uint64_t page_size() {
    return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Calls `visit` with portions of all ranges until it returns false; the bytes it accepted.
template <class Visit>
uint64_t for_portions(const std::vector<LockRange>& ranges, const Visit& visit) {
    uint64_t done = 0;
    for (const LockRange& range : ranges) {
        for (uint64_t at = 0; at < range.bytes; at += kPortionBytes) {
            const uint64_t bytes = std::min(kPortionBytes, range.bytes - at);
            if (!visit(range.data + at, bytes)) return done;
            done += bytes;
        }
    }
    return done;
}

std::string how_to_raise() {
    return "raise it with ulimit -l, with LimitMEMLOCK= of the service or with the capability "
           "CAP_IPC_LOCK";
}

}  // namespace

uint64_t page_bytes(uint64_t bytes) {
    return align_up(bytes, page_size());
}

std::vector<FilePages> mapped_file_pages(const TensorFiles& files,
                                         const WeightPlan& weights,
                                         uint32_t file) {
    const uint64_t page = page_size();
    std::vector<FilePages> out;
    for (size_t i = 0; i < weights.is_mapped[file].size(); ++i) {
        if (!weights.is_mapped[file][i]) continue;
        const gguf::TensorInfo& tensor = files.file(file).tensors()[i];
        const uint64_t first = tensor.offset & ~(page - 1);
        out.push_back({tensor.part, first, align_up(tensor.offset + tensor.bytes, page) - first});
    }
    std::sort(out.begin(), out.end(), [](const FilePages& a, const FilePages& b) {
        return std::pair(a.part, a.offset) < std::pair(b.part, b.offset);
    });
    size_t kept = 0;
    for (const FilePages& next : out) {
        FilePages* const last = kept == 0 ? nullptr : &out[kept - 1];
        if (last != nullptr && next.part == last->part &&
            next.offset <= last->offset + last->bytes) {
            last->bytes = std::max(last->bytes, next.offset + next.bytes - last->offset);
        } else {
            out[kept++] = next;
        }
    }
    out.resize(kept);
    return out;
}

std::optional<Reason> memlock_shortage(uint64_t need, uint64_t limit) {
    if (need <= limit) return std::nullopt;
    return Reason{"mem.memlock",
                  "mlock needs " + std::to_string(need) +
                      " bytes to be locked, this process may "
                      "lock " +
                      std::to_string(limit) + " (RLIMIT_MEMLOCK); " + how_to_raise()};
}

std::optional<Reason> lock_memory(const std::vector<LockRange>& ranges,
                                  const LoadProgress& progress) {
    uint64_t total = 0;
    for (const LockRange& range : ranges) total += range.bytes;
    uint64_t done = 0;
    int error = 0;
    for_portions(ranges, [&](std::byte* data, uint64_t bytes) {
        progress("lock", done, total);
        if (mlock(data, bytes) != 0) {
            error = errno;
            return false;
        }
        done += bytes;
        return true;
    });
    if (error == 0) {
        progress("lock", done, total);
        return std::nullopt;
    }
    uint64_t left = done;
    for_portions(ranges, [&](std::byte* data, uint64_t bytes) {
        if (left == 0) return false;
        munlock(data, bytes);
        left -= bytes;
        return true;
    });
    const std::string said = std::generic_category().message(error);
    const uint64_t limit = memlock_limit_bytes();
    const std::string allowed =
        limit == UINT64_MAX ? "without a limit" : std::to_string(limit) + " bytes";
    return Reason{"mem.memlock",
                  "mlock of " + std::to_string(total) + " bytes failed after " +
                      std::to_string(done) + ": " + said + "; this process may lock " + allowed +
                      " (RLIMIT_MEMLOCK); " + how_to_raise()};
}

}  // namespace strata
