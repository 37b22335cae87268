// The one exception of the wire: the peer's bytes broke a rule of protocol/README.md. Whoever
// throws it is dead afterwards; the process ends with ExitCode::ProtocolBroken (or
// ProtocolMismatch for FaultCode::Mismatch).
#pragma once

#include <string>

#include "engine/base/error.h"
#include "protocol/cpp/codes.h"

namespace strata::protocol {

class ProtocolFault : public Error {
  public:
    // `text` is one sentence that names the thing and the allowed range.
    ProtocolFault(FaultCode fault, const std::string& text)
        : Error(ErrorKind::Internal, std::string(name(fault)), text), fault_(fault) {}

    FaultCode fault() const { return fault_; }

  private:
    FaultCode fault_;
};

}  // namespace strata::protocol
