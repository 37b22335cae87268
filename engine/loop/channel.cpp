#include "engine/loop/channel.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <variant>

#include "engine/base/crash_handler.h"
#include "engine/base/error.h"

namespace strata {

using protocol::ExitCode;

namespace {

// Memory that a message keeps busy while it waits.
size_t message_bytes(const protocol::ToEngineMessage& message) {
    return sizeof(message) + std::visit(
                                 [](const auto& m) -> size_t {
                                     if constexpr (requires { m.ids; }) {
                                         return m.ids.capacity() * sizeof(m.ids[0]);
                                     }
                                     return 0;
                                 },
                                 message);
}

}  // namespace

Channel::Channel(int command_fd, int event_fd, Inbox& inbox, const Vitals& vitals)
    : command_fd_(command_fd), event_fd_(event_fd), inbox_(inbox), vitals_(vitals) {
    if (pipe(stop_fds_) != 0) {
        throw Error(ErrorKind::Internal, "ipc.pipe", "cannot make a pipe for the reader thread");
    }
    reader_ = std::thread([this] { read_commands(); });
    writer_ = std::thread([this] { write_events(); });
}

Channel::~Channel() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    filled_.notify_one();
    close(stop_fds_[1]);
    reader_.join();
    writer_.join();
    close(stop_fds_[0]);
    close(command_fd_);
    close(event_fd_);
}

bool Channel::has_room(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool fits = pending_.size() + writing_bytes_ + bytes <= kCapacityBytes;
    if (!fits) wants_wake_ = true;
    return fits;
}

protocol::Limits Channel::offered_limits() {
    const std::lock_guard lock(mutex_);
    return peer_.offered_limits();
}

bool Channel::is_booting() {
    const std::lock_guard lock(mutex_);
    return peer_.phase() < protocol::Phase::Run;
}

void Channel::leave(ExitCode code, std::chrono::milliseconds limit) {
    {
        std::unique_lock lock(mutex_);
        drained_.wait_for(lock, limit, [this] { return pending_.empty() && writing_bytes_ == 0; });
    }
    // Other threads may be anywhere: no destructors.
    _exit(static_cast<int>(code));
}

void Channel::read_commands() {
    register_thread("reader");
    std::array<uint8_t, 65536> bytes;
    std::vector<protocol::ToEngineMessage> messages;
    while (true) {
        pollfd waits[2] = {{command_fd_, POLLIN, 0}, {stop_fds_[0], POLLIN, 0}};
        if (poll(waits, 2, -1) < 0 && errno != EINTR) _exit(static_cast<int>(ExitCode::ParentDied));
        if (waits[1].revents != 0) return;
        if (waits[0].revents == 0) continue;
        const ssize_t count = read(command_fd_, bytes.data(), bytes.size());
        if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (count <= 0) _exit(static_cast<int>(ExitCode::ParentDied));
        try {
            {
                const std::lock_guard lock(mutex_);
                peer_.feed({bytes.data(), static_cast<size_t>(count)}, messages);
            }
            handle(messages);
        } catch (const protocol::ProtocolFault& fault) {
            send(protocol::Dying{ErrorKind::Internal, fault.code(), fault.what()});
            leave(fault.fault() == protocol::FaultCode::Mismatch ? ExitCode::ProtocolMismatch
                                                                 : ExitCode::ProtocolBroken);
        }
        messages.clear();
    }
}

void Channel::handle(std::vector<protocol::ToEngineMessage>& messages) {
    for (protocol::ToEngineMessage& message : messages) {
        const auto* ping = std::get_if<protocol::Ping>(&message);
        if (!ping) {
            push(message);
            continue;
        }
        // Without room nobody reads, so nobody misses the answer.
        if (!has_room(0)) continue;
        send(protocol::Pong{ping->nonce,
                            vitals_.step.load(std::memory_order_relaxed),
                            vitals_.is_busy.load(std::memory_order_relaxed)});
    }
}

void Channel::push(protocol::ToEngineMessage& message) {
    const size_t bytes = message_bytes(message);
    while (!inbox_.try_push(message, bytes)) {
        // The supervisor's end must be noticed also while its messages wait.
        if (is_hung_up()) _exit(static_cast<int>(ExitCode::ParentDied));
        inbox_.wait_for_room(std::chrono::milliseconds(100));
    }
}

bool Channel::is_hung_up() const {
    pollfd wait = {command_fd_, 0, 0};
    return poll(&wait, 1, 0) > 0 && (wait.revents & (POLLHUP | POLLERR)) != 0;
}

void Channel::write_events() {
    register_thread("writer");
    protocol::Buffer writing;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            filled_.wait(lock, [this] { return !pending_.empty() || is_stopping_; });
            if (pending_.empty()) return;
            writing.swap(pending_);
            writing_bytes_ = writing.size();
        }
        size_t written = 0;
        while (written < writing.size()) {
            const ssize_t count =
                write(event_fd_, writing.data() + written, writing.size() - written);
            if (count < 0 && errno == EINTR) continue;
            if (count < 0 && errno == EAGAIN) {
                pollfd wait = {event_fd_, POLLOUT, 0};
                poll(&wait, 1, -1);
                continue;
            }
            if (count < 0) _exit(static_cast<int>(ExitCode::ParentDied));
            written += static_cast<size_t>(count);
        }
        writing.clear();
        bool is_wake_wanted = false;
        {
            const std::lock_guard lock(mutex_);
            writing_bytes_ = 0;
            is_wake_wanted = std::exchange(wants_wake_, false);
        }
        drained_.notify_all();
        if (is_wake_wanted) inbox_.wake();
    }
}

}  // namespace strata
