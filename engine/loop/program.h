// What every engine program does with its command line: print help, version, kernels or a plan, or
// serve over pipes. The last place that catches: whatever ends the process says why, on stderr and
// to the supervisor.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/loop/backend.h"

namespace strata {

// The program's backend, limited to the instruction set `isa`. Throws Error "config.isa".
using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& isa)>;

// The body of main(); returns the exit code. `program` is its name in messages.
int run_program(const char* program, const MakeBackend& make_backend, int count, char** values);

}  // namespace strata
