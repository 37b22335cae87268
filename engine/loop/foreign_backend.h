// A backend or processor that this program does not run, for plans and reports: its kernel table
// and facts that a person states. Loading a model with it is refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loop/backend.h"

namespace strata {

// One kernel table: a backend, and for the CPU the instruction set it is for.
struct KernelTable {
    std::string backend;  // "cpu", "cuda", "metal"
    std::string isa;      // empty where the backend has no choice of code paths
    std::vector<KernelEntry> entries;
};

// Every backend and instruction set that the sources have a table for, the CPU's first. The same on
// every machine.
std::vector<KernelTable> kernel_tables();

// Facts of a device that is not here; what is absent is not known (device) or taken from this
// machine (host).
struct AssumedFacts {
    std::string device;                     // its name; empty: "an assumed cuda device"
    std::optional<uint64_t> device_memory;  // bytes
    std::optional<uint64_t> host_memory;    // bytes
    std::optional<uint32_t> cores;

    bool is_empty() const { return device.empty() && !device_memory && !host_memory && !cores; }
};

// Reads "device=NAME,device_memory=24GiB,host_memory=64GiB,cores=16"; sizes are whole numbers of
// bytes, or of KiB, MiB, GiB, TiB. Throws Error{InvalidRequest, "config.flag"} that names the part
// it cannot read.
AssumedFacts parse_assumed(std::string_view text);

class ForeignBackend final : public Backend {
  public:
    // `backend` as in KernelTable; `isa` for "cpu" only, "auto" = the best of this processor.
    // Throws Error{InvalidRequest}: "config.flag" for a backend, "config.isa" for a name that is
    // not known.
    ForeignBackend(const std::string& backend, std::string_view isa, const AssumedFacts& facts);

    std::string name() const override { return name_; }
    std::string device() const override { return device_; }
    const HostFacts& host() const override { return host_; }
    DeviceFacts device_facts() const override;
    std::vector<KernelEntry> kernels() const override { return kernels_; }
    // Always throws Error{Unsupported, "mode.foreign_device"}.
    Loaded load(const Model& model,
                const ModePlan& plan,
                const Registry& registry,
                const LoadProgress& progress) override;

  private:
    std::string name_;
    std::string device_;
    uint64_t device_memory_ = 0;
    HostFacts host_;
    std::vector<KernelEntry> kernels_;
};

}  // namespace strata
