#include "engine/loop/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/base/crash_handler.h"
#include "engine/base/error.h"
#include "protocol/cpp/codes.h"

namespace strata {

namespace {

constexpr int kFirstPrivateFd = 100;
constexpr int kPipeBytes = 1 << 20;

int take_fd(std::string_view text, int access, const char* what) {
    const auto fail = [&](const std::string& why) -> int {
        throw Error(
            ErrorKind::InvalidRequest,
            "config.ipc",
            "--ipc: the " + std::string(what) + " descriptor \"" + std::string(text) + "\" " + why);
    };
    int fd = -1;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), fd);
    if (status != std::errc() || end != text.data() + text.size() || fd < 0) {
        return fail("is not a number");
    }
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return fail("is not open");
    const int mode = flags & O_ACCMODE;
    if (mode != access && mode != O_RDWR) {
        return fail(access == O_RDONLY ? "cannot be read" : "cannot be written");
    }
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirstPrivateFd);
    if (moved < 0) return fail(std::string("cannot be moved: ") + std::strerror(errno));
    if (fd > STDERR_FILENO) close(fd);
#if defined(F_SETPIPE_SZ)
    fcntl(moved, F_SETPIPE_SZ, kPipeBytes);  // as large as the system lets us; smaller works too
#endif
    return moved;
}

}  // namespace

void die_with_parent() {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    const char* text = std::getenv("STRATA_PPID");
    if (!text) return;
    // The parent may have died before the signal was armed.
    if (std::to_string(getppid()) != text) {
        _exit(static_cast<int>(protocol::ExitCode::ParentDied));
    }
}

Pipes take_pipes(const std::string& text) {
    const size_t comma = text.find(',');
    if (comma == std::string::npos) {
        throw Error(
            ErrorKind::InvalidRequest,
            "config.ipc",
            "--ipc takes two or three descriptors, COMMAND_FD,EVENT_FD[,BEACON_FD]; got \"" + text +
                "\"");
    }
    const size_t second = std::min(text.find(',', comma + 1), text.size());
    const std::string_view view(text);
    Pipes pipes;
    pipes.command_fd = take_fd(view.substr(0, comma), O_RDONLY, "command");
    pipes.event_fd = take_fd(view.substr(comma + 1, second - comma - 1), O_WRONLY, "event");
    if (second < text.size()) {
        pipes.beacon_fd = take_fd(view.substr(second + 1), O_RDWR, "beacon");
    }
    return pipes;
}

void route_signals(Inbox& inbox) {
    signal(SIGPIPE, SIG_IGN);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    // Lives as long as the process, which ends by _exit.
    std::thread([signals, &inbox] {
        register_thread("signals");
        while (true) {
            int number = 0;
            if (sigwait(&signals, &number) == 0) inbox.request_drain();
        }
    }).detach();
}

}  // namespace strata
