// Both pipes to the supervisor, with a thread each, so that the compute thread never blocks on
// them.
//
// Reader thread: bytes -> peer -> messages. PING is answered here from Vitals, so PONG says whether
// the process lives even while a kernel runs. The end of the command pipe means that the supervisor
// is gone: _exit(ParentDied) at once, whatever the other threads do. A broken rule of the protocol:
// DYING, then _exit with the fault's code.
//
// Writer thread: drains a bounded buffer (kCapacityBytes). send() only appends. When the supervisor
// does not read, the buffer fills; who sends in bulk asks has_room() first and does nothing until
// the writer wakes the inbox. So a full pipe pauses all sequences where they are, with their KV,
// while cancels and pings are still taken.
//
// One mutex guards the peer and the buffer (peer.h asks for that). Nothing is sent behind a last
// word (REFUSE, DYING): later messages are dropped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <type_traits>

#include "engine/loop/inbox.h"
#include "engine/loop/vitals.h"
#include "protocol/cpp/peer.h"

namespace strata {

class Channel {
  public:
    static constexpr size_t kCapacityBytes = size_t{8} << 20;

    // Owns both descriptors from now on; `inbox` and `vitals` outlive the channel.
    Channel(int command_fd, int event_fd, Inbox& inbox, const Vitals& vitals);
    // For tests of the classes around it; a serving process leaves by leave().
    ~Channel();

    // Appends one message; any thread. Throws ProtocolFault (Length) for what the agreed limits
    // do not allow.
    template <class T>
    void send(const T& message) {
        {
            const std::lock_guard lock(mutex_);
            if (is_closed_ || is_too_early<T>()) return;
            peer_.send(message, pending_);
            is_closed_ = peer_.phase() == protocol::Phase::Ended;
        }
        filled_.notify_one();
    }

    // Whether `bytes` more fit the buffer. Also arms the wake of the inbox for when not.
    bool has_room(size_t bytes);

    protocol::Limits offered_limits();
    bool is_booting();  // READY was not sent yet

    // Writes out what is pending, at most for `limit`, and ends the process. Safe from any thread.
    [[noreturn]] void leave(protocol::ExitCode code,
                            std::chrono::milliseconds limit = std::chrono::seconds(2));

  private:
    // Last words before HELLO: the supervisor could not tell what they are, the exit code says it.
    template <class T>
    bool is_too_early() const {
        return std::is_same_v<T, protocol::Dying> && peer_.phase() == protocol::Phase::Hello;
    }

    void read_commands();
    void handle(std::vector<protocol::ToEngineMessage>& messages);
    void push(protocol::ToEngineMessage& message);
    void write_events();
    bool is_hung_up() const;

    const int command_fd_;
    const int event_fd_;
    Inbox& inbox_;
    const Vitals& vitals_;

    std::mutex mutex_;
    std::condition_variable filled_;
    std::condition_variable drained_;
    protocol::EnginePeer peer_;
    protocol::Buffer pending_;  // appended by send()
    size_t writing_bytes_ = 0;  // taken by the writer, not yet in the pipe
    bool is_closed_ = false;
    bool wants_wake_ = false;
    bool is_stopping_ = false;

    int stop_fds_[2] = {-1, -1};  // ends the reader's poll on destruction
    std::thread reader_;
    std::thread writer_;
};

}  // namespace strata
