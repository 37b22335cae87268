// Faults of the world (file, memory, device, peer) as one exception type. Bugs use STRATA_ASSERT,
// expected outcomes are values. STYLE.md says where it may be caught.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace strata {

// The closed set of kinds that crosses the wire; each implies the peer's reaction
// (protocol/README.md, "Error kinds"). Values equal strata_protocol.ErrorKind.
enum class ErrorKind : uint8_t {
    InvalidRequest,
    Unsupported,
    Overloaded,
    Cancelled,
    NumericFault,
    DeviceLost,
    OutOfMemory,
    Internal,
};

class Error : public std::runtime_error {
  public:
    // `code` is a stable dotted reason code ("gguf.truncated"), `text` one clear sentence.
    Error(ErrorKind kind, std::string code, const std::string& text)
        : std::runtime_error(text), kind_(kind), code_(std::move(code)) {}

    ErrorKind kind() const { return kind_; }
    const std::string& code() const { return code_; }

  private:
    ErrorKind kind_;
    std::string code_;
};

// One reason why something is not supported or differs from what was asked.
struct Reason {
    std::string code;  // stable, dotted: "kernel.missing", "mem.kv_budget"
    std::string text;  // one sentence with the names and numbers that matter
};

}  // namespace strata
