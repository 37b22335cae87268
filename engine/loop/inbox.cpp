#include "engine/loop/inbox.h"

#include <iterator>

namespace strata {

bool Inbox::try_push(protocol::ToEngineMessage& message, size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        const bool is_full =
            messages_.size() >= kMessagesMax || (bytes_ > 0 && bytes_ + bytes > kBytesMax);
        if (is_full) return false;
        messages_.push_back(std::move(message));
        bytes_ += bytes;
    }
    arrived_.notify_one();
    return true;
}

void Inbox::wait_for_room(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    taken_.wait_for(lock, limit, [this] { return messages_.empty(); });
}

void Inbox::request_drain() {
    {
        const std::lock_guard lock(mutex_);
        is_drain_requested_ = true;
        is_woken_ = true;
    }
    arrived_.notify_one();
}

bool Inbox::is_drain_requested() {
    const std::lock_guard lock(mutex_);
    return is_drain_requested_;
}

void Inbox::wake() {
    {
        const std::lock_guard lock(mutex_);
        is_woken_ = true;
    }
    arrived_.notify_one();
}

void Inbox::wait(std::optional<std::chrono::milliseconds> limit) {
    std::unique_lock lock(mutex_);
    const auto is_ready = [this] { return is_woken_ || !messages_.empty(); };
    if (limit) {
        arrived_.wait_for(lock, *limit, is_ready);
    } else {
        arrived_.wait(lock, is_ready);
    }
}

bool Inbox::take(std::vector<protocol::ToEngineMessage>& out) {
    bool is_drain_requested = false;
    {
        const std::lock_guard lock(mutex_);
        out.insert(out.end(),
                   std::make_move_iterator(messages_.begin()),
                   std::make_move_iterator(messages_.end()));
        messages_.clear();
        bytes_ = 0;
        is_woken_ = false;
        is_drain_requested = is_drain_requested_;
    }
    taken_.notify_one();
    return is_drain_requested;
}

}  // namespace strata
