#include "protocol/cpp/peer.h"

#include <string>

#include "engine/base/assert.h"

namespace strata::protocol {

void EnginePeer::feed(std::span<const uint8_t> bytes, std::vector<ToEngineMessage>& out) {
    if (dead_) throw ProtocolFault(FaultCode::Order, "the peer failed earlier");
    dead_ = true;  // whatever leaves by an exception leaves a dead peer behind
    decoder_.append(bytes);
    while (const std::optional<FrameView> frame = decoder_.next()) accept(*frame, out);
    dead_ = false;
}

void EnginePeer::accept(const FrameView& frame, std::vector<ToEngineMessage>& out) {
    const std::optional<MessageType> type = to_engine_type(frame.payload);
    if (!type && (frame.flags & kFlagIgnorable)) {
        Reader reader(frame.payload);
        reader.skip();
        reader.expect_end();
        return;
    }
    ToEngineMessage message = decode_to_engine(frame.payload);
    const std::string tag(name(*type));
    if (is_data(*type) != ((frame.flags & kFlagData) != 0))
        throw ProtocolFault(FaultCode::Flags, tag + ": the data flag disagrees with the message");
    const std::optional<Phase> after = next_phase(phase_, *type);
    if (!after)
        throw ProtocolFault(FaultCode::Order,
                            tag + " is not legal in phase " + std::string(name(phase_)));
    if (const auto* offer = std::get_if<Offer>(&message)) check_offer(*offer);
    phase_ = *after;
    out.push_back(std::move(message));
}

void EnginePeer::check_offer(const Offer& offer) {
    if (offer.proto < kProtoMin || offer.proto > kProtoMax)
        throw ProtocolFault(FaultCode::Mismatch,
                            "the supervisor chose protocol " + std::to_string(offer.proto) +
                                "; the engine speaks " + std::to_string(kProtoMin) + ".." +
                                std::to_string(kProtoMax));
    if (const char* problem = limits_problem(offer.limits))
        throw ProtocolFault(FaultCode::Decode, std::string("OFFER.limits: ") + problem);
    proto_ = offer.proto;
    offered_ = offer.limits;
}

void EnginePeer::send(const ToSupervisorMessage& message, Buffer& out) {
    std::visit([&](const auto& m) { send(m, out); }, message);
}

void EnginePeer::send(const Ready& message, Buffer& out) {
    const Limits& l = message.limits;
    STRATA_ASSERT(limits_problem(l) == nullptr, "READY.limits are not usable");
    STRATA_ASSERT(l.control_bytes <= offered_.control_bytes &&
                      l.data_bytes <= offered_.data_bytes &&
                      l.absolute_bytes <= offered_.absolute_bytes,
                  "READY.limits exceed OFFER.limits");
    const Phase after = phase_after_send(MessageType::Ready);
    encode_frame(message, out, limits_);
    phase_ = after;
    limits_ = l;
    decoder_.set_limits(l);
}

Phase EnginePeer::phase_after_send(MessageType type) const {
    const std::optional<Phase> after = next_phase(phase_, type);
    STRATA_ASSERT(after.has_value(), "message is not legal in this phase");
    return *after;
}

}  // namespace strata::protocol
