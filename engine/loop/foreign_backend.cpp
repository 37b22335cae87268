#include "engine/loop/foreign_backend.h"

#include <charconv>
#include <limits>

#include "engine/base/cpu_features.h"
#include "engine/base/error.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/kernels.h"
#include "engine/metal/kernels.h"

namespace strata {
namespace {

[[noreturn]] void fail(const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, "config.flag", text);
}

struct Unit {
    std::string_view suffix;
    int shift;
};
constexpr Unit kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};

uint64_t read_number(std::string_view key, std::string_view text, uint64_t max, bool has_unit) {
    std::string_view digits = text;
    int shift = 0;
    for (const Unit& unit : kUnits) {
        if (!has_unit || !digits.ends_with(unit.suffix)) continue;
        digits.remove_suffix(unit.suffix.size());
        shift = unit.shift;
        break;
    }
    uint64_t value = 0;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool is_number = status == std::errc() && end == digits.data() + digits.size();
    if (!is_number || value == 0 || value > (max >> shift)) {
        fail("--assume: " + std::string(key) + " is \"" + std::string(text) +
             "\"; it takes a whole number from 1 to " + std::to_string(max) +
             (has_unit ? ", of bytes or with KiB, MiB, GiB or TiB" : ""));
    }
    return value << shift;
}

constexpr uint64_t kMemoryMax = uint64_t{1} << 50;
constexpr uint64_t kCoresMax = 1 << 16;

}  // namespace

std::vector<KernelTable> kernel_tables() {
    std::vector<KernelTable> tables;
    for (const std::string_view isa : kIsaNames) {
        tables.push_back({"cpu", std::string(isa), cpu_kernels_for_report(isa_features(isa))});
    }
    tables.push_back({"cuda", "", cuda_kernels()});
    tables.push_back({"metal", "", metal_kernels()});
    return tables;
}

AssumedFacts parse_assumed(std::string_view text) {
    AssumedFacts facts;
    while (!text.empty()) {
        const std::string_view part = text.substr(0, text.find(','));
        text.remove_prefix(part.size() == text.size() ? part.size() : part.size() + 1);
        const size_t equals = part.find('=');
        const std::string_view key = part.substr(0, equals);
        const std::string_view value =
            equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
        if (value.empty()) {
            fail("--assume: \"" + std::string(part) + "\" is not of the form FACT=VALUE");
        } else if (key == "device") {
            facts.device = value;
        } else if (key == "device_memory") {
            facts.device_memory = read_number(key, value, kMemoryMax, true);
        } else if (key == "host_memory") {
            facts.host_memory = read_number(key, value, kMemoryMax, true);
        } else if (key == "cores") {
            facts.cores = static_cast<uint32_t>(read_number(key, value, kCoresMax, false));
        } else {
            fail("--assume: no fact is named \"" + std::string(key) +
                 "\"; facts are device, device_memory, host_memory, cores");
        }
    }
    return facts;
}

ForeignBackend::ForeignBackend(const std::string& backend,
                               std::string_view isa,
                               const AssumedFacts& facts)
    : name_(backend),
      device_(facts.device.empty() ? "an assumed " + backend + " device" : facts.device),
      host_(read_host_facts()) {
    if (backend == "cpu") {
        host_.isa = isa == "auto" ? best_isa(detect_cpu()) : isa;
        host_.cpu = device_;
    } else if (isa != "auto") {
        fail("--isa is for the backend cpu, not for " + backend);
    }
    bool is_known = false;
    for (KernelTable& table : kernel_tables()) {
        if (table.backend != backend) continue;
        is_known = true;
        if (table.isa == host_.isa) kernels_ = std::move(table.entries);
    }
    if (!is_known)
        fail("--as: no backend is named \"" + backend + "\"; there are cpu, cuda, metal");
    if (backend == "cpu") isa_features(host_.isa);  // throws for a name that is not known
    if (facts.cores) host_.cores = *facts.cores;
    if (facts.host_memory)
        host_.memory_total_bytes = host_.memory_available_bytes = *facts.host_memory;
    // A processor's memory is the host's; that of another device is known only if it was stated.
    if (backend == "cpu") device_memory_ = host_.memory_available_bytes;
    if (facts.device_memory) device_memory_ = *facts.device_memory;
}

DeviceFacts ForeignBackend::device_facts() const {
    return {device_, name_, device_memory_, device_memory_, true};
}

Loaded ForeignBackend::load(const Model&, const ModePlan&, const Registry&, const LoadProgress&) {
    throw Error(ErrorKind::Unsupported,
                "mode.foreign_device",
                device_ + " is assumed: this program plans for the backend " + name_ +
                    " and cannot run it");
}

}  // namespace strata
