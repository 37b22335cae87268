// strata-engine-cpu: the engine loop on the CPU backend.
#include <memory>
#include <string>

#include "engine/loop/cpu_backend.h"
#include "engine/loop/program.h"

int main(int count, char** values) {
    const auto make_backend = [](const std::string& isa) {
        return std::make_unique<strata::CpuBackend>(isa);
    };
    return strata::run_program("strata-engine-cpu", make_backend, count, values);
}
