// Python view of the protocol's C++ side: frames, payloads and the engine's peer, so that property
// tests run the same inputs through both implementations. Faults arrive as EngineError with the
// fault's code.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string_view>
#include <utility>
#include <vector>

#include "protocol/cpp/frame.h"
#include "protocol/cpp/messages.h"
#include "protocol/cpp/peer.h"

namespace py = pybind11;

namespace {

using namespace strata::protocol;

std::span<const uint8_t> view(const py::bytes& bytes) {
    const std::string_view text(bytes);
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

py::bytes to_bytes(std::span<const uint8_t> data) {
    return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
}

template <class Message>
py::bytes payload_of(const Message& message) {
    Buffer out;
    encode(message, out);
    return to_bytes(out);
}

// Frames in, (flags, payload) out.
std::vector<std::pair<int, py::bytes>> feed_frames(FrameDecoder& decoder, const py::bytes& data) {
    decoder.append(view(data));
    std::vector<std::pair<int, py::bytes>> frames;
    while (const auto frame = decoder.next())
        frames.emplace_back(frame->flags, to_bytes(frame->payload));
    return frames;
}

}  // namespace

void bind_protocol(py::module_& m) {
    m.def(
        "reencode_to_engine",
        [](const py::bytes& payload) { return payload_of(decode_to_engine(view(payload))); },
        py::arg("payload"),
        "Decodes a payload sent to the engine and encodes it again.");
    m.def(
        "reencode_to_supervisor",
        [](const py::bytes& payload) { return payload_of(decode_to_supervisor(view(payload))); },
        py::arg("payload"),
        "Decodes a payload sent to the supervisor and encodes it again.");
    m.def(
        "frame_to_supervisor",
        [](const py::bytes& payload) {
            Buffer out;
            std::visit([&](const auto& message) { encode_frame(message, out); },
                       decode_to_supervisor(view(payload)));
            return to_bytes(out);
        },
        py::arg("payload"),
        "The frame that the engine writes for a message, given its payload.");
    py::class_<FrameDecoder>(m, "FrameDecoder")
        .def(py::init<>())
        .def(
            "feed", feed_frames, py::arg("data"), "Frames that `data` completes: (flags, payload).")
        .def("finish", &FrameDecoder::finish, "Raises EngineError inside a frame.");
    py::class_<EnginePeer>(m, "EnginePeer")
        .def(py::init<>())
        .def(
            "feed",
            [](EnginePeer& peer, const py::bytes& data) {
                std::vector<ToEngineMessage> messages;
                peer.feed(view(data), messages);
                std::vector<py::bytes> payloads;
                for (const auto& message : messages) payloads.push_back(payload_of(message));
                return payloads;
            },
            py::arg("data"),
            "Payloads of the messages that `data` completes.")
        .def(
            "send",
            [](EnginePeer& peer, const py::bytes& payload) {
                Buffer out;
                peer.send(decode_to_supervisor(view(payload)), out);
                return to_bytes(out);
            },
            py::arg("payload"),
            "The frame of a message, given its payload; it must be legal in this phase.")
        .def_property_readonly("phase", [](const EnginePeer& peer) { return name(peer.phase()); })
        .def_property_readonly("proto", &EnginePeer::proto);
}
