#include "engine/base/crash_handler.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "engine/base/modules.h"

namespace strata {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kHasSanitizer = true;
#else
constexpr bool kHasSanitizer = false;
#endif
#else
constexpr bool kHasSanitizer = false;
#endif

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr int kDumpSignal = SIGUSR2;
constexpr size_t kStackBytes = 64 * 1024;  // unwinding takes about 10 KiB
constexpr int kOthersWaitMs = 2000;        // for a record that another thread is writing

BeaconPage* g_page = nullptr;  // written once, before other threads start
pthread_t g_compute;           // likewise
thread_local char t_name[16];  // read by handlers on the same thread
thread_local bool t_has_stack = false;

// A handler's stack, given back when its thread ends.
struct HandlerStack {
    void* memory = nullptr;
    void take() {
        memory =
            mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            memory = nullptr;
            return;
        }
        stack_t stack = {};
        stack.ss_sp = memory;
        stack.ss_size = kStackBytes;
        t_has_stack = sigaltstack(&stack, nullptr) == 0;
    }
    ~HandlerStack() {
        if (!memory) return;
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
        munmap(memory, kStackBytes);
    }
};
thread_local HandlerStack t_stack;

uint64_t program_counter(const void* context) {
    [[maybe_unused]] const auto* user = static_cast<const ucontext_t*>(context);
#if defined(__linux__) && defined(__x86_64__)
    return static_cast<uint64_t>(user->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
    return user->uc_mcontext.pc;
#elif defined(__APPLE__) && defined(__aarch64__)
    return user->uc_mcontext->__ss.__pc;
#elif defined(__APPLE__) && defined(__x86_64__)
    return user->uc_mcontext->__ss.__rip;
#else
    return 0;
#endif
}

struct Walk {
    BeaconCrash* record;
    uint64_t pc;  // where the signal came; frames before it are the handler's own
    bool has_met_pc;
    uint32_t count;
};

_Unwind_Reason_Code on_frame(_Unwind_Context* context, void* argument) {
    Walk& walk = *static_cast<Walk*>(argument);
    const uint64_t address = _Unwind_GetIP(context);
    if (!walk.has_met_pc) {
        walk.has_met_pc = address == walk.pc;
        return _URC_NO_REASON;
    }
    if (walk.count == kBeaconFramesMax) return _URC_END_OF_STACK;
    walk.record->frames[walk.count++] = address;
    return _URC_NO_REASON;
}

bool is_sent(const siginfo_t& info) {
#if defined(__linux__)
    return info.si_code <= 0;
#else
    return info.si_code == SI_USER || info.si_code == SI_QUEUE;
#endif
}

// The facts first, then the frames one by one: whatever happens while unwinding, the reader has
// what was there before.
void fill(BeaconCrash& record, int number, const siginfo_t& info, const void* context) {
    record.signal = static_cast<uint32_t>(number);
    record.code = info.si_code;
    record.sender_pid = is_sent(info) ? static_cast<uint32_t>(info.si_pid) : 0;
    record.is_external = is_sent(info) && info.si_pid != getpid() ? 1 : 0;
    record.address = is_sent(info) ? 0 : reinterpret_cast<uint64_t>(info.si_addr);
    record.position = __atomic_load_n(&g_page->position, __ATOMIC_RELAXED);
    std::memcpy(record.thread, t_name, sizeof(record.thread));
    Walk walk = {&record, program_counter(context), false, 0};
    if (walk.pc != 0) record.frames[walk.count++] = walk.pc;
    record.frame_count = walk.count;
    _Unwind_Backtrace(on_frame, &walk);
    __atomic_store_n(&record.frame_count, walk.count, __ATOMIC_RELEASE);
}

void pause_ms() {
    const timespec pause = {0, 1'000'000};
    nanosleep(&pause, nullptr);
}

void on_crash(int number, siginfo_t* info, void* context) {
    BeaconCrash& record = g_page->crash;
    uint32_t none = kBeaconRecordNone;
    if (__atomic_compare_exchange_n(
            &record.state, &none, kBeaconRecordBegun, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        fill(record, number, *info, context);
        __atomic_store_n(&record.state, kBeaconRecordWhole, __ATOMIC_RELEASE);
    } else {
        // The first record stays; ending the process would cut it short.
        for (int i = 0; i < kOthersWaitMs; ++i) {
            if (__atomic_load_n(&record.state, __ATOMIC_ACQUIRE) == kBeaconRecordWhole) break;
            pause_ms();
        }
    }
    // Delivered when the handler returns, at the place that the signal interrupted.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(number, &standard, nullptr);
    raise(number);
}

void on_dump(int number, siginfo_t* info, void* context) {
    const int kept_errno = errno;
    if (!pthread_equal(pthread_self(), g_compute)) {
        pthread_kill(g_compute, number);
    } else {
        BeaconCrash& record = g_page->dump;
        __atomic_store_n(&record.state, kBeaconRecordBegun, __ATOMIC_RELEASE);
        fill(record, number, *info, context);
        __atomic_store_n(&record.state, kBeaconRecordWhole, __ATOMIC_RELEASE);
    }
    errno = kept_errno;
}

[[noreturn]] void on_terminate() {
    char text[sizeof(BeaconPage::assert_text)] = "terminate: called without an exception";
    if (const std::exception_ptr current = std::current_exception()) {
        try {
            std::rethrow_exception(current);
        } catch (const std::exception& error) {
            std::snprintf(text, sizeof(text), "terminate: %s", error.what());
        } catch (...) {
            std::snprintf(text, sizeof(text), "terminate: an exception of unknown type");
        }
    }
    note_assert(text);
    std::fprintf(stderr, "%s\n", text);
    std::abort();
}

void note_exit(int status) {
    g_page->exit_status = status;
    __atomic_store_n(&g_page->exit_state, 1u, __ATOMIC_RELEASE);
}

void watch_exit() {
#if defined(__GLIBC__)
    on_exit([](int status, void*) { note_exit(status); }, nullptr);
#else
    std::atexit([] { note_exit(-1); });
#endif
}

// Leaves whatever handler is there already.
void handle(int number, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0) return;
    if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return;
    action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    // A fault inside the handler ends the process at once instead of entering it again.
    sigemptyset(&action.sa_mask);
    for (const int other : kCrashSignals) sigaddset(&action.sa_mask, other);
    sigaddset(&action.sa_mask, kDumpSignal);
    sigaction(number, &action, nullptr);
}

_Unwind_Reason_Code ignore_frame(_Unwind_Context*, void*) {
    return _URC_NO_REASON;
}

}  // namespace

void arm_crash_handler(BeaconPage& page) {
    g_page = &page;
    g_compute = pthread_self();
    list_modules(page);
    register_thread("compute");
    // The first use of the unwinder may load and allocate; a handler's must not.
    _Unwind_Backtrace(ignore_frame, nullptr);
    if (!kHasSanitizer) {
        for (const int number : kCrashSignals) handle(number, on_crash);
    }
    handle(kDumpSignal, on_dump);
    std::set_terminate(on_terminate);
    watch_exit();
}

const BeaconPage* armed_page() {
    return g_page;
}

void register_thread(std::string_view name) {
    const size_t length = std::min(name.size(), sizeof(t_name) - 1);
    std::memcpy(t_name, name.data(), length);
    t_name[length] = '\0';
#if defined(__linux__)
    pthread_setname_np(pthread_self(), t_name);
#endif
    // A sanitizer has stacks of its own and takes them back itself.
    if (!kHasSanitizer && g_page && !t_has_stack) t_stack.take();
}

void note_assert(const char* text) {
    if (!g_page) return;
    uint32_t none = 0;
    if (!__atomic_compare_exchange_n(
            &g_page->assert_state, &none, 1u, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        return;
    }
    const size_t length = std::min(std::strlen(text), sizeof(g_page->assert_text) - 1);
    std::memcpy(g_page->assert_text, text, length);
    __atomic_store_n(&g_page->assert_state, 2u, __ATOMIC_RELEASE);
}

}  // namespace strata
