// What waits for the compute thread: messages from the reader thread and the wish to drain from the
// signal thread. Bounded by count and bytes. The compute thread sleeps here when it has nothing to
// do; anybody may wake it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/cpp/messages.h"

namespace strata {

class Inbox {
  public:
    static constexpr size_t kMessagesMax = 1024;
    static constexpr size_t kBytesMax = size_t{64} << 20;

    // False when full: ask again after wait_for_room. A message larger than all room enters an
    // empty inbox.
    bool try_push(protocol::ToEngineMessage& message, size_t bytes);

    // Until there may be room, at most `limit`.
    void wait_for_room(std::chrono::milliseconds limit);

    // Drain was asked for outside the protocol (SIGTERM). Sticky.
    void request_drain();
    bool is_drain_requested();

    // Lets wait() return although nothing came: room to send again.
    void wake();

    // Until a message, a wake or a wish to drain is there, or the time is up (never without
    // `limit`). Returns at once if one came since the last call of take().
    void wait(std::optional<std::chrono::milliseconds> limit);

    // Moves all messages behind those in `out`; true once drain was requested.
    bool take(std::vector<protocol::ToEngineMessage>& out);

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::condition_variable taken_;
    std::vector<protocol::ToEngineMessage> messages_;
    size_t bytes_ = 0;
    bool is_woken_ = false;
    bool is_drain_requested_ = false;
};

}  // namespace strata
