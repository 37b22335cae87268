// strata-engine-cpu-faults: strata-engine-cpu with kernels that fail as STRATA_FAULT says. For
// tests of what surrounds the engine; never installed by a plain install.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "engine/faults/fault.h"
#include "engine/faults/faulty_backend.h"
#include "engine/loop/cpu_backend.h"
#include "engine/loop/program.h"

int main(int count, char** values) {
    const auto make_backend = [](const std::string& isa) {
        const char* text = std::getenv("STRATA_FAULT");
        return std::make_unique<strata::faults::FaultyBackend>(
            std::make_unique<strata::CpuBackend>(isa),
            strata::faults::parse_faults(text ? text : ""));
    };
    return strata::run_program("strata-engine-cpu-faults", make_backend, count, values);
}
