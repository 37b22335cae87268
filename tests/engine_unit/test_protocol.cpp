// The C++ side of protocol/golden, and what golden files cannot show: limits before allocation,
// split streams, order, encoding without allocation.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "protocol/cpp/frame.h"
#include "protocol/cpp/messages.h"
#include "protocol/cpp/peer.h"
#include "tests/engine_unit/check.h"

namespace {
size_t allocations = 0;
size_t allocation_bytes_max = 0;
}  // namespace

// Not inlined: the compiler would see malloc meet delete.
[[gnu::noinline]] void* operator new(size_t size) {
    ++allocations;
    allocation_bytes_max = std::max(allocation_bytes_max, size);
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace {

using namespace strata::protocol;
using Bytes = std::span<const uint8_t>;

const std::filesystem::path kGolden = std::filesystem::path(STRATA_SOURCE_DIR) / "protocol/golden";

Buffer read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good(), path.string());
    return Buffer(std::istreambuf_iterator<char>(file), {});
}

struct Golden {
    std::string name;
    bool to_engine;
    std::string expect;  // ok, as, ignored, bad
    std::string what;    // the message's case, or the fault code
    Buffer data;
};

std::vector<Golden> golden() {
    std::vector<Golden> all;
    for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
        if (entry.path().extension() != ".bin") continue;
        const std::string name = entry.path().stem().string();
        const size_t first = name.find('-');
        const size_t second = name.find('-', first + 1);
        const size_t third = std::min(name.find('-', second + 1), name.size());
        all.push_back({name,
                       name.substr(0, first) == "to_engine",
                       name.substr(first + 1, second - first - 1),
                       name.substr(second + 1, third - second - 1),
                       read(entry.path())});
    }
    CHECK(all.size() > 80, all.size());
    return all;
}

// What a receiver makes of a stream: one frame again, nothing (ignored), or a fault's name.
struct Outcome {
    Buffer frame;
    std::string fault;
};

template <class Decode, class TypeOf>
Outcome receive_with(const Buffer& stream, Decode decode, TypeOf type_of) {
    Outcome outcome;
    try {
        FrameDecoder decoder;
        decoder.append(stream);
        while (const auto frame = decoder.next()) {
            const std::optional<MessageType> type = type_of(frame->payload);
            if (!type && (frame->flags & kFlagIgnorable)) {
                Reader reader(frame->payload);
                reader.skip();
                reader.expect_end();
                continue;
            }
            const auto message = decode(frame->payload);
            if (is_data(*type) != ((frame->flags & kFlagData) != 0))
                throw ProtocolFault(FaultCode::Flags, "class");
            std::visit([&](const auto& m) { encode_frame(m, outcome.frame); }, message);
        }
        decoder.finish();
    } catch (const ProtocolFault& fault) {
        outcome.fault = fault.code();
    }
    return outcome;
}

Outcome receive(const Golden& g) {
    if (g.to_engine) return receive_with(g.data, decode_to_engine, to_engine_type);
    return receive_with(g.data, decode_to_supervisor, to_supervisor_type);
}

template <class T>
Buffer frame_of(const T& message, const Limits& limits = {}) {
    Buffer out;
    encode_frame(message, out, limits);
    return out;
}

template <class Run>
std::string fault_of(Run run) {
    try {
        run();
    } catch (const ProtocolFault& fault) {
        return fault.code();
    }
    return "none";
}

Offer offer_of(uint32_t proto, const Limits& limits = {}) {
    Offer offer;
    offer.proto = proto;
    offer.limits = limits;
    return offer;
}

EnginePeer running(const Limits& limits = {}) {
    EnginePeer peer;
    std::vector<ToEngineMessage> in;
    Buffer out;
    peer.send(Hello{}, out);
    peer.feed(frame_of(offer_of(1, limits)), in);
    peer.send(Caps{}, out);
    peer.feed(frame_of(Plan{}), in);
    peer.send(Progress{}, out);
    Ready ready;
    ready.limits = peer.offered_limits();
    peer.send(ready, out);
    CHECK(in.size() == 2, in.size());
    return peer;
}

TEST(golden_frames_are_read_and_written_byte_for_byte) {
    const std::vector<Golden> all = golden();
    for (const Golden& g : all) {
        const Outcome outcome = receive(g);
        if (g.expect == "bad") {
            CHECK(outcome.fault == g.what, g.name, outcome.fault);
            continue;
        }
        CHECK(outcome.fault.empty(), g.name, outcome.fault);
        if (g.expect == "ignored") {
            CHECK(outcome.frame.empty(), g.name);
        } else if (g.expect == "ok") {
            CHECK(outcome.frame == g.data, g.name);
        } else {
            const std::string same =
                (g.to_engine ? "to_engine-ok-" : "to_supervisor-ok-") + g.what + ".bin";
            CHECK(outcome.frame == read(kGolden / same), g.name);
        }
    }
}

TEST(a_stream_may_be_split_at_every_byte) {
    Buffer stream;
    std::vector<Buffer> payloads;
    for (const Golden& g : golden()) {
        if (g.expect != "ok") continue;
        stream.insert(stream.end(), g.data.begin(), g.data.end());
        payloads.emplace_back(g.data.begin() + kHeaderBytes, g.data.end());
    }
    for (size_t piece = 1; piece < 97; ++piece) {
        FrameDecoder decoder;
        size_t count = 0;
        for (size_t at = 0; at < stream.size(); at += piece) {
            decoder.append(Bytes(stream).subspan(at, std::min(piece, stream.size() - at)));
            while (const auto frame = decoder.next()) {
                CHECK(count < payloads.size());
                CHECK(std::ranges::equal(frame->payload, payloads[count]), piece, count);
                ++count;
            }
        }
        decoder.finish();
        CHECK(count == payloads.size(), piece);
    }
}

TEST(every_flipped_bit_is_a_fault) {
    const Buffer good = frame_of(Prompt{.rid = 7, .offset = 60'000, .ids = {1, 2, 3}});
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
        Buffer bad = good;
        bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
        const std::string fault = fault_of([&] {
            FrameDecoder decoder;
            decoder.append(bad);
            while (decoder.next()) continue;
            decoder.finish();
        });
        CHECK(fault != "none", bit);
    }
}

TEST(crc32_equals_the_known_value_in_every_alignment) {
    const std::string text = "123456789";
    const Bytes bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    CHECK(crc32(bytes) == 0xcbf4'3926u);
    for (size_t cut = 0; cut <= text.size(); ++cut)
        CHECK(crc32(bytes.subspan(cut), crc32(bytes.first(cut))) == 0xcbf4'3926u, cut);
}

TEST(a_count_allocates_for_what_arrived_alone) {
    // PROMPT with 900 000 ids announced and one there; then one with as many as fit.
    Buffer payload = {0x94, 0xa6, 'P', 'R', 'O', 'M', 'P', 'T', 1, 0, 0xdd, 0x00, 0x0d, 0xbb, 0xa0};
    payload.resize(payload.size() + 900'000, 0xc0);  // not ids
    allocation_bytes_max = 0;
    CHECK(fault_of([&] { decode_to_engine(payload); }) == "proto.decode");
    CHECK(allocation_bytes_max <= kHeaderBytes + 64 * 1024, allocation_bytes_max);
}

TEST(unknown_values_are_skipped_to_a_limited_depth) {
    const auto nested = [](size_t depth) {
        static constexpr uint8_t kHead[] = {0x93, 0xa6, 'C', 'A', 'N', 'C', 'E', 'L', 8};
        Buffer payload(std::size(kHead) + depth + 1, 0x91);
        std::copy(std::begin(kHead), std::end(kHead), payload.begin());
        payload.back() = 0xc0;
        return payload;
    };
    CHECK(fault_of([&] { decode_to_engine(nested(kDepthMax - 1)); }) == "none");
    CHECK(fault_of([&] { decode_to_engine(nested(kDepthMax)); }) == "proto.decode");
    CHECK(fault_of([&] { decode_to_engine(nested(1'000'000)); }) == "proto.decode");
}

TEST(hot_messages_encode_without_allocation) {
    Tokens tokens;
    for (uint64_t rid = 0; rid < 8; ++rid)
        tokens.items.push_back({.rid = rid, .offset = 100'000, .ids = {42, 43}, .logprobs = {}});
    Buffer out;
    out.reserve(4096);
    const size_t before = allocations;
    for (int i = 0; i < 100; ++i) {
        out.clear();
        encode_frame(tokens, out);
    }
    CHECK(allocations == before, allocations - before);
}

TEST(text_that_is_not_utf8_is_repaired_by_the_writer) {
    Dying dying{.error_kind = ErrorKind::Internal, .code = "x", .text = "a\xff\xed\xa0\x80z\xc3"};
    Buffer payload;
    encode(dying, payload);
    const auto back = std::get<Dying>(decode_to_supervisor(payload));
    const std::string r = "\xef\xbf\xbd";
    CHECK(back.text == "a" + r + r + r + r + "z" + r, back.text);
}

TEST(the_peer_walks_the_handshake) {
    EnginePeer peer = running();
    CHECK(peer.phase() == Phase::Run);
    CHECK(peer.proto() == 1);
    std::vector<ToEngineMessage> in;
    Buffer out;
    peer.feed(frame_of(Submit{.rid = 1, .prompt_tokens = 1, .ids = {1}, .params = {}}), in);
    peer.feed(frame_of(Ping{.nonce = 5}), in);
    peer.send(Pong{.nonce = 5, .step = 1, .busy = false}, out);
    peer.feed(frame_of(Drain{}), in);
    CHECK(in.size() == 3, in.size());
    CHECK(peer.phase() == Phase::Drain);
    CHECK(fault_of([&] { peer.feed(frame_of(Submit{}), in); }) == "proto.order");
    CHECK(fault_of([&] { peer.feed(frame_of(Ping{}), in); }) == "proto.order");  // dead now
}

TEST(what_came_before_a_violation_is_delivered) {
    EnginePeer peer = running();
    Buffer bytes = frame_of(Cancel{.rid = 3});
    const Buffer plan = frame_of(Plan{});
    bytes.insert(bytes.end(), plan.begin(), plan.end());
    std::vector<ToEngineMessage> in;
    CHECK(fault_of([&] { peer.feed(bytes, in); }) == "proto.order");
    CHECK(in.size() == 1 && std::get<Cancel>(in[0]).rid == 3);
}

TEST(versions_and_limits_are_negotiated) {
    const auto offered = [](const Offer& offer) {
        EnginePeer peer;
        Buffer out;
        std::vector<ToEngineMessage> in;
        peer.send(Hello{}, out);
        return fault_of([&] { peer.feed(frame_of(offer), in); });
    };
    CHECK(offered(offer_of(kProtoMax)) == "none");
    CHECK(offered(offer_of(kProtoMax + 1)) == "proto.mismatch");
    CHECK(offered(offer_of(1, {.control_bytes = 100})) == "proto.decode");
    CHECK(offered(offer_of(1, {.data_bytes = 1u << 25, .absolute_bytes = 1u << 26})) ==
          "proto.decode");

    EnginePeer small = running({.control_bytes = 4096, .data_bytes = 8192});
    Buffer out;
    Dying dying;
    dying.text.assign(5000, 'x');
    CHECK(fault_of([&] { small.send(dying, out); }) == "proto.length");
    CHECK(out.empty() && small.phase() == Phase::Run);
    std::vector<ToEngineMessage> in;
    const Buffer prompt = frame_of(Prompt{.rid = 1, .offset = 0, .ids = std::vector(9000, 1)});
    CHECK(fault_of([&] { small.feed(prompt, in); }) == "proto.length");
}

TEST(exit_codes_carry_whether_to_retry) {
    CHECK(is_retryable(ExitCode::Internal) && is_retryable(ExitCode::ProtocolBroken));
    CHECK(!is_retryable(ExitCode::ModelBad) && !is_retryable(ExitCode::ConfigRefused));
    CHECK(meaning(ExitCode::ParentDied) == "the supervisor is gone");
}

}  // namespace

CHECK_MAIN
