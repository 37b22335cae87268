// Last words that need nothing of the process: on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT the
// beacon gets signal, sender, address, thread and backtrace, then the signal takes its default
// course, so that the exit status names it. Also notes what ends a process without a signal's
// facts: assertion, std::terminate, exit(). SIGUSR2 asks for the compute thread's backtrace.
//
// Handlers run on a stack of their own and do only what a signal handler may. Where somebody has
// handlers already (a sanitizer), they stay. The page is the one mutable global of the engine:
// a signal handler gets no argument.
#pragma once

#include <string_view>

#include "engine/base/beacon_layout.h"

namespace strata {

// Arms the process. `page` stays mapped until its end. Call on the compute thread, which is the one
// that SIGUSR2 asks about, before other threads start; it is registered as "compute".
void arm_crash_handler(BeaconPage& page);

// The page that arm_crash_handler was given; null in a process that is not armed.
const BeaconPage* armed_page();

// Gives the calling thread its name in records (15 bytes) and, in an armed process, a stack for
// handlers. First thing in every thread that the engine starts.
void register_thread(std::string_view name);

// Keeps the text of a failed assertion for the reader of the beacon; the first one stays.
void note_assert(const char* text);

}  // namespace strata
