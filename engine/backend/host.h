// Facts about the machine that plans depend on: usable cores and memory, within the limits of the
// control group that the process runs in.
#pragma once

#include <cstdint>
#include <string>

namespace strata {

// HostFacts of the protocol.
struct HostFacts {
    std::string os;
    std::string cpu;                              // the processor's own name
    std::string isa;                              // code path chosen; filled in by who chose it
    uint32_t cores = 1;                           // this process may use
    uint64_t memory_total_bytes = 0;              // of the machine or the control group
    uint64_t memory_available_bytes = 0;          // without pushing others out; 0 = unknown
    uint64_t memory_lockable_bytes = UINT64_MAX;  // memlock_limit_bytes()
};

// DeviceFacts of the protocol: what a plan is made for.
struct DeviceFacts {
    std::string name;     // the device's own name
    std::string backend;  // "cpu"
    uint64_t memory_total_bytes = 0;
    uint64_t memory_available_bytes = 0;  // 0 = unknown
    bool is_assumed = false;              // facts given by a person, for a device that is not here
};

HostFacts read_host_facts();

// Bytes of memory that this process may lock (RLIMIT_MEMLOCK); UINT64_MAX where nothing limits it,
// also because it has the capability to exceed the limit.
uint64_t memlock_limit_bytes();

}  // namespace strata
