#include "protocol/cpp/frame.h"

#include <array>
#include <string>

namespace strata::protocol {

namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

// Slicing by 8: table[k][b] is the CRC of byte b followed by k zero bytes.
constexpr Table make_table() {
    Table table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xedb8'8320u : 0u);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; ++i)
        for (size_t k = 1; k < 8; ++k)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
    return table;
}

constexpr Table kCrc = make_table();

uint32_t load32(const uint8_t* bytes) {
    return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
           uint32_t{bytes[3]} << 24;
}

void store32(uint8_t* bytes, uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t limit_of(const Limits& limits, bool data) {
    return data ? limits.data_bytes : limits.control_bytes;
}

std::string too_long(uint32_t length, const Limits& limits, bool data) {
    return "payload of " + std::to_string(length) + " bytes; a " + (data ? "data" : "control") +
           " message may have " + std::to_string(limit_of(limits, data));
}

}  // namespace

uint32_t crc32(std::span<const uint8_t> bytes, uint32_t crc) {
    crc = ~crc;
    const uint8_t* at = bytes.data();
    size_t left = bytes.size();
    for (; left >= 8; at += 8, left -= 8) {
        const uint32_t low = load32(at) ^ crc;
        const uint32_t high = load32(at + 4);
        crc = kCrc[7][low & 0xff] ^ kCrc[6][low >> 8 & 0xff] ^ kCrc[5][low >> 16 & 0xff] ^
              kCrc[4][low >> 24] ^ kCrc[3][high & 0xff] ^ kCrc[2][high >> 8 & 0xff] ^
              kCrc[1][high >> 16 & 0xff] ^ kCrc[0][high >> 24];
    }
    for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kCrc[0][(crc ^ *at) & 0xff];
    return ~crc;
}

const char* limits_problem(const Limits& limits) {
    if (limits.control_bytes < kControlBytesMin) return "control_bytes must be at least 4096";
    if (limits.data_bytes < limits.control_bytes)
        return "data_bytes must not be below control_bytes";
    if (limits.absolute_bytes < limits.data_bytes)
        return "absolute_bytes must not be below data_bytes";
    if (limits.absolute_bytes > kAbsoluteBytes) return "absolute_bytes must be at most 16777216";
    return nullptr;
}

void FrameDecoder::append(std::span<const uint8_t> bytes) {
    if (begin_ > 0) {  // at most one unfinished frame is moved
        buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
        begin_ = 0;
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<FrameView> FrameDecoder::next() {
    const auto unread = std::span<const uint8_t>(buffer_).subspan(begin_);
    if (unread.size() < kHeaderBytes) return std::nullopt;
    const uint32_t magic = uint32_t{unread[0]} | uint32_t{unread[1]} << 8;
    const uint8_t version = unread[2];
    const uint8_t flags = unread[3];
    const uint32_t length = load32(&unread[4]);
    if (magic != kMagic)
        throw ProtocolFault(FaultCode::Magic,
                            "frame starts with " + std::to_string(magic) + ", not 21332 (0x5354)");
    if (version != kFrameVersion)
        throw ProtocolFault(FaultCode::Version,
                            "frame version " + std::to_string(version) + "; this end reads " +
                                std::to_string(kFrameVersion));
    if (flags & ~kFlagsKnown)
        throw ProtocolFault(FaultCode::Flags, "reserved flags are set in " + std::to_string(flags));
    const bool data = flags & kFlagData;
    if (length > limit_of(limits_, data))
        throw ProtocolFault(FaultCode::Length, too_long(length, limits_, data));
    if (unread.size() - kHeaderBytes < length) return std::nullopt;
    const auto payload = unread.subspan(kHeaderBytes, length);
    if (crc32(payload, crc32(unread.first(8))) != load32(&unread[8]))
        throw ProtocolFault(
            FaultCode::Crc,
            "checksum of a frame of " + std::to_string(length) + " bytes does not match");
    begin_ += kHeaderBytes + length;
    return FrameView{flags, payload};
}

void FrameDecoder::finish() const {
    if (buffer_.size() > begin_)
        throw ProtocolFault(
            FaultCode::Truncated,
            "the stream ended " + std::to_string(buffer_.size() - begin_) + " bytes into a frame");
}

size_t begin_frame(Buffer& out) {
    const size_t start = out.size();
    out.resize(start + kHeaderBytes);
    return start;
}

void end_frame(Buffer& out, size_t start, MessageType type, uint8_t flags, const Limits& limits) {
    const size_t length = out.size() - start - kHeaderBytes;
    const bool data = is_data(type);
    if (length > limit_of(limits, data)) {
        out.resize(start);
        const auto shown = static_cast<uint32_t>(std::min<size_t>(length, 0xffff'ffff));
        throw ProtocolFault(FaultCode::Length,
                            std::string(name(type)) + ": " + too_long(shown, limits, data));
    }
    uint8_t* header = &out[start];
    header[0] = kMagic & 0xff;
    header[1] = kMagic >> 8;
    header[2] = kFrameVersion;
    header[3] = static_cast<uint8_t>(flags | (data ? kFlagData : 0));
    store32(header + 4, static_cast<uint32_t>(length));
    const auto frame = std::span<const uint8_t>(out).subspan(start);
    store32(header + 8, crc32(frame.subspan(kHeaderBytes), crc32(frame.first(8))));
}

}  // namespace strata::protocol
