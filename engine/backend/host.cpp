#include "engine/backend/host.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace strata {

namespace {

#ifdef __linux__

std::optional<std::string> read_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) {
        return std::nullopt;
    }
    return line;
}

// A count of bytes; "max" and anything else that is no number is no limit.
std::optional<uint64_t> read_bytes(const std::string& path) {
    const std::optional<std::string> line = read_line(path);
    uint64_t value = 0;
    if (!line || !(std::istringstream(*line) >> value)) {
        return std::nullopt;
    }
    return value;
}

// Value behind `key` in a file of "key value" lines, in the file's unit.
std::optional<uint64_t> read_field(const std::string& path, const std::string& key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string name;
        uint64_t value = 0;
        if (words >> name >> value && name == key) {
            return value;
        }
    }
    return std::nullopt;
}

// Directories of this process's control group and its ancestors (version 2), innermost first.
std::vector<std::string> cgroup_directories() {
    std::vector<std::string> directories;
    std::ifstream file("/proc/self/cgroup");
    std::string line;
    while (std::getline(file, line)) {
        if (line.rfind("0::", 0) != 0) {
            continue;
        }
        std::string path = line.substr(3);
        while (path.size() > 1) {
            directories.push_back("/sys/fs/cgroup" + path);
            path = path.substr(0, path.rfind('/'));
        }
    }
    directories.emplace_back("/sys/fs/cgroup");
    return directories;
}

void apply_memory_limit(HostFacts& facts, uint64_t limit, uint64_t used, uint64_t reclaimable) {
    facts.memory_total_bytes = std::min(facts.memory_total_bytes, limit);
    const uint64_t held = used > reclaimable ? used - reclaimable : 0;
    facts.memory_available_bytes =
        std::min(facts.memory_available_bytes, limit > held ? limit - held : 0);
}

void read_memory(HostFacts& facts) {
    facts.memory_total_bytes = read_field("/proc/meminfo", "MemTotal:").value_or(0) * 1024;
    facts.memory_available_bytes = read_field("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
    for (const std::string& directory : cgroup_directories()) {
        if (const auto limit = read_bytes(directory + "/memory.max")) {
            apply_memory_limit(facts,
                               *limit,
                               read_bytes(directory + "/memory.current").value_or(0),
                               read_field(directory + "/memory.stat", "inactive_file").value_or(0));
        }
    }
    const std::string v1 = "/sys/fs/cgroup/memory/";
    const auto limit = read_bytes(v1 + "memory.limit_in_bytes");
    if (limit && *limit < facts.memory_total_bytes) {  // "no limit" is a huge number there
        apply_memory_limit(facts,
                           *limit,
                           read_bytes(v1 + "memory.usage_in_bytes").value_or(0),
                           read_field(v1 + "memory.stat", "total_inactive_file").value_or(0));
    }
}

uint32_t usable_cores() {
    uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
    }
    for (const std::string& directory : cgroup_directories()) {
        std::istringstream words(read_line(directory + "/cpu.max").value_or("max"));
        uint64_t quota = 0;
        uint64_t period = 0;
        if (words >> quota >> period && period > 0) {
            const uint64_t whole = std::max<uint64_t>(1, (quota + period / 2) / period);
            cores = static_cast<uint32_t>(std::min<uint64_t>(cores, whole));
        }
    }
    return cores;
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
        const size_t colon = line.find(": ");
        if (colon != std::string::npos && line.rfind("model name", 0) == 0) {
            return line.substr(colon + 2);
        }
    }
    return "";
}

#else

void read_memory(HostFacts& facts) {
    const auto pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
    facts.memory_total_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    // No portable figure of what is free; leave a quarter to the rest of the system.
    facts.memory_available_bytes = facts.memory_total_bytes / 4 * 3;
}

uint32_t usable_cores() {
    return std::max(1u, std::thread::hardware_concurrency());
}

std::string cpu_name() {
#ifdef __APPLE__
    char name[256] = {};
    size_t bytes = sizeof name - 1;
    if (sysctlbyname("machdep.cpu.brand_string", name, &bytes, nullptr, 0) == 0) {
        return name;
    }
#endif
    return "";
}

#endif

// Whether this process may lock more than RLIMIT_MEMLOCK says.
bool may_exceed_memlock() {
#ifdef __linux__
    constexpr unsigned kCapIpcLock = 14;  // linux/capability.h
    std::ifstream file("/proc/self/status");
    std::string line;
    while (std::getline(file, line)) {
        if (line.rfind("CapEff:", 0) != 0) continue;
        return (std::strtoull(line.c_str() + 7, nullptr, 16) >> kCapIpcLock & 1) != 0;
    }
#endif
    return false;
}

}  // namespace

uint64_t memlock_limit_bytes() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
    if (limit.rlim_cur == RLIM_INFINITY || may_exceed_memlock()) return UINT64_MAX;
    return limit.rlim_cur;
}

HostFacts read_host_facts() {
    HostFacts facts;
    utsname names{};
    if (uname(&names) == 0) {
        facts.os = std::string(names.sysname) + " " + names.release;
        facts.cpu = names.machine;
    }
    const std::string cpu = cpu_name();
    facts.cpu = cpu.empty() ? facts.cpu : cpu;
    facts.cores = usable_cores();
    read_memory(facts);
    facts.memory_lockable_bytes = memlock_limit_bytes();
    return facts;
}

}  // namespace strata
