// Which exit code an error means.
#pragma once

#include <string_view>

#include "engine/base/error.h"
#include "protocol/cpp/codes.h"

namespace strata {

// For an error while serving.
protocol::ExitCode exit_code_of(ErrorKind kind);

// For an error before READY, where the code says what is to blame: command line, processor, file
// or configuration.
protocol::ExitCode boot_exit_code(const Error& error);

}  // namespace strata
