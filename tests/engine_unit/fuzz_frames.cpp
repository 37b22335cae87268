// Fuzz target of everything that reads the wire: frames, payloads of both directions and the
// engine's peer. The first byte chooses; the rest is the input.
//   0: a byte stream through FrameDecoder and the payloads in it
//   1: a byte stream through EnginePeer after a legal handshake, in two pieces
//   2, 3: a payload to the engine, to the supervisor
// Besides memory errors it looks for: another exception than ProtocolFault, a decoded message
// that does not survive encoding and decoding, and a second encoding that differs from the first.
// Inputs of the golden corpus (frames) are taken as streams whatever their first byte is.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "protocol/cpp/frame.h"
#include "protocol/cpp/messages.h"
#include "protocol/cpp/peer.h"

namespace {

using namespace strata::protocol;
using Bytes = std::span<const uint8_t>;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "fuzz_frames: %s\n", what);
    std::abort();
}

template <class Decode>
void round_trip(Bytes payload, Decode decode) {
    Buffer first;
    try {
        encode(decode(payload), first);
    } catch (const ProtocolFault&) {
        return;
    }
    Buffer second;
    encode(decode(Bytes(first)), second);  // our own bytes: a fault here ends the process
    require(first == second, "a message changed on its second way through");
}

void payload_both_ways(Bytes payload) {
    round_trip(payload, decode_to_engine);
    round_trip(payload, decode_to_supervisor);
}

void frames(Bytes stream) {
    FrameDecoder decoder;
    try {
        decoder.append(stream);
        while (const auto frame = decoder.next()) payload_both_ways(frame->payload);
        decoder.finish();
    } catch (const ProtocolFault&) {
    }
}

// A checksum is hard to guess, so streams for the peer are repaired where the length permits.
Buffer with_checksums(Bytes stream) {
    Buffer fixed(stream.begin(), stream.end());
    size_t at = 0;
    while (fixed.size() - at >= kHeaderBytes) {
        const size_t length = fixed[at + 4] | fixed[at + 5] << 8 | size_t{fixed[at + 6]} << 16 |
                              size_t{fixed[at + 7]} << 24;
        if (length > fixed.size() - at - kHeaderBytes) break;
        const Bytes frame = Bytes(fixed).subspan(at, kHeaderBytes + length);
        const uint32_t crc = crc32(frame.subspan(kHeaderBytes), crc32(frame.first(8)));
        for (size_t i = 0; i < 4; ++i) fixed[at + 8 + i] = static_cast<uint8_t>(crc >> (8 * i));
        at += kHeaderBytes + length;
    }
    return fixed;
}

void peer(Bytes stream) {
    EnginePeer engine;
    std::vector<ToEngineMessage> received;
    Buffer wire;
    engine.send(Hello{}, wire);
    if (!stream.empty() && stream[0] % 2 == 0) {
        Buffer supervisor;
        encode_frame(Offer{.proto = 1,
                           .run_id = {},
                           .model = {},
                           .want = {},
                           .limits = {},
                           .quarantine = {},
                           .without_kernels = {},
                           .ple = {}},
                     supervisor);
        engine.feed(supervisor, received);
        engine.send(Caps{}, wire);
        supervisor.clear();
        encode_frame(Plan{}, supervisor);
        engine.feed(supervisor, received);
        engine.send(Ready{}, wire);
    }
    try {
        const Buffer fixed = with_checksums(stream);
        const size_t half = fixed.size() / 2;
        engine.feed(Bytes(fixed).first(half), received);
        engine.feed(Bytes(fixed).subspan(half), received);
        engine.finish();
    } catch (const ProtocolFault&) {
    }
    for (const ToEngineMessage& message : received) {
        Buffer out;
        encode(message, out);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const Bytes input(data, size);
    if (data[0] == (kMagic & 0xff)) {
        const Buffer fixed = with_checksums(input);
        frames(input);
        frames(fixed);
        peer(input);
        return 0;
    }
    const Bytes rest = input.subspan(1);
    switch (data[0] % 4) {
        case 0:
            frames(rest);
            break;
        case 1:
            peer(rest);
            break;
        case 2:
            round_trip(rest, decode_to_engine);
            break;
        default:
            round_trip(rest, decode_to_supervisor);
    }
    return 0;
}
