#include "engine/loop/exit_code.h"

namespace strata {

using protocol::ExitCode;

ExitCode exit_code_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::OutOfMemory:
            return ExitCode::OutOfMemory;
        case ErrorKind::DeviceLost:
            return ExitCode::DeviceLost;
        case ErrorKind::InvalidRequest:
        case ErrorKind::Unsupported:
            return ExitCode::ConfigRefused;
        case ErrorKind::Overloaded:
        case ErrorKind::Cancelled:
        case ErrorKind::NumericFault:
        case ErrorKind::Internal:
            return ExitCode::Internal;
    }
    return ExitCode::Internal;
}

ExitCode boot_exit_code(const Error& error) {
    const std::string_view code = error.code();
    if (code == "config.flag" || code == "config.ipc") return ExitCode::Usage;
    if (code == "config.isa") {
        // A name nobody knows is the command line's fault, one that is known the processor's.
        return error.kind() == ErrorKind::Unsupported ? ExitCode::IsaMissing : ExitCode::Usage;
    }
    if (code.starts_with("gguf.") || code.starts_with("model.")) return ExitCode::ModelBad;
    return exit_code_of(error.kind());
}

}  // namespace strata
