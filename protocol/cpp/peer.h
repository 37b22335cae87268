// The engine's end of the protocol as a state machine without I/O: bytes in, messages out;
// messages in, bytes out. Owns framing, decoding, the legal order (generated from
// strata_protocol/order.py) and the limits in force. Does not own the meaning of a message: what
// a request may ask for is the scheduler's to judge.
//
// Not thread-safe. Where one thread reads and another writes, one lock covers both calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/cpp/frame.h"
#include "protocol/cpp/messages.h"

namespace strata::protocol {

class EnginePeer {
  public:
    EnginePeer() = default;

    // Takes bytes from the command pipe and appends the messages they complete to `out`, in order.
    // Throws ProtocolFault at the first violation, with what came before it in `out`; the peer is
    // dead afterwards and throws ProtocolFault (Order) whenever it is fed again.
    void feed(std::span<const uint8_t> bytes, std::vector<ToEngineMessage>& out);

    // The command pipe was closed. Throws ProtocolFault (Truncated) if that was inside a frame.
    void finish() const { decoder_.finish(); }

    // Appends the frame of `message`. Sending what the phase does not allow is a bug of ours
    // (assert). Throws ProtocolFault (Length) when it is longer than the limits in force allow,
    // which leaves `out` and the peer as they were.
    template <class T>
    void send(const T& message, Buffer& out) {
        const Phase after = phase_after_send(T::kType);
        encode_frame(message, out, limits_);
        phase_ = after;
    }
    // READY carries the limits in force from then on; none may exceed what OFFER asked for.
    void send(const Ready& message, Buffer& out);
    void send(const ToSupervisorMessage& message, Buffer& out);

    Phase phase() const { return phase_; }

    // Version to speak: OFFER's. 0 before OFFER.
    uint32_t proto() const { return proto_; }

    // What OFFER asked for as limits; READY.limits is this or less.
    const Limits& offered_limits() const { return offered_; }

  private:
    Phase phase_after_send(MessageType type) const;
    void accept(const FrameView& frame, std::vector<ToEngineMessage>& out);
    void check_offer(const Offer& offer);

    FrameDecoder decoder_;
    Phase phase_ = Phase::Hello;
    Limits limits_;  // defaults until READY
    Limits offered_;
    uint32_t proto_ = 0;
    bool dead_ = false;
};

}  // namespace strata::protocol
