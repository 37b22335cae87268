// MessagePack to JSON, for printing on a terminal what otherwise goes over the wire: the fields are
// listed once, in the protocol.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace strata {

// One whole MessagePack value as JSON, indented by two spaces. Map keys must be strings. Throws
// ProtocolFault (Decode) for bytes that are not MessagePack.
std::string to_json(std::span<const uint8_t> msgpack);

}  // namespace strata
