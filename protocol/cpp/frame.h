// Frames: a 12-byte little-endian header, then one MessagePack payload.
//   u16 magic 0x5354 | u8 version | u8 flags | u32 payload length | u32 crc32(header[0:8] +
//   payload)
// Owns framing and its limits; knows nothing of what a payload means beyond its class (control or
// data). A violation throws ProtocolFault; the decoder must not be used afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/cpp/messages.h"

namespace strata::protocol {

inline constexpr uint16_t kMagic = 0x5354;
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kHeaderBytes = 12;
inline constexpr uint32_t kControlBytesMin = 4096;               // smallest limit to agree on
inline constexpr uint32_t kAbsoluteBytes = 16u * 1024u * 1024u;  // no agreement goes beyond

inline constexpr uint8_t kFlagIgnorable = 0x01;  // a receiver without this message skips it
inline constexpr uint8_t kFlagData = 0x02;       // payload may reach Limits::data_bytes
inline constexpr uint8_t kFlagsKnown = kFlagIgnorable | kFlagData;

struct FrameView {
    uint8_t flags;
    std::span<const uint8_t> payload;  // into the decoder's buffer
};

// CRC-32 as in zlib; `crc` continues an earlier part.
uint32_t crc32(std::span<const uint8_t> bytes, uint32_t crc = 0);

// Why `limits` cannot be used (a static sentence), or nullptr: kControlBytesMin <= control_bytes
// <= data_bytes <= absolute_bytes <= kAbsoluteBytes.
const char* limits_problem(const Limits& limits);

// Bytes in, frames out. Holds at most one unfinished frame and what was appended last.
class FrameDecoder {
  public:
    explicit FrameDecoder(const Limits& limits = {}) : limits_(limits) {}

    void append(std::span<const uint8_t> bytes);

    // The next whole frame, or nothing until more bytes arrive. Valid until append(). Throws
    // ProtocolFault (Magic, Version, Flags, Length, Crc) as soon as the header shows it, before
    // the payload has arrived.
    std::optional<FrameView> next();

    // The stream ended: throws ProtocolFault (Truncated) if that was inside a frame.
    void finish() const;

    void set_limits(const Limits& limits) { limits_ = limits; }

  private:
    Buffer buffer_;
    size_t begin_ = 0;  // start of the unread part
    Limits limits_;
};

// Reserves the header in `out`; returns where it starts. Write the payload, then end_frame.
size_t begin_frame(Buffer& out);

// Completes the frame that starts at `start`. Throws ProtocolFault (Length), with `out` cut back
// to `start`, when the payload is longer than its class may be.
void end_frame(Buffer& out, size_t start, MessageType type, uint8_t flags, const Limits& limits);

// Appends one frame that carries `message`; does not allocate where `out` has room.
template <class T>
void encode_frame(const T& message, Buffer& out, const Limits& limits = {}, uint8_t flags = 0) {
    const size_t start = begin_frame(out);
    encode(message, out);
    end_frame(out, start, T::kType, flags, limits);
}

}  // namespace strata::protocol
