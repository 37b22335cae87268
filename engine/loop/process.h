// The process around the loop: descriptors, signals, and dying with the parent.
#pragma once

#include <string>

#include "engine/loop/inbox.h"

namespace strata {

// Arms the parent-death signal where the system has one, and ends the process (ParentDied) when
// the parent is not STRATA_PPID any more. An unset variable means that nobody supervises.
void die_with_parent();

struct Pipes {
    int command_fd = -1;  // read
    int event_fd = -1;    // write
    int beacon_fd = -1;   // file to map, -1 where none was given
};

// "3,4" or "3,4,5" -> the descriptors moved above 100 with close-on-exec, so that a stray print or
// a child cannot reach the protocol. Throws Error "config.ipc".
Pipes take_pipes(const std::string& text);

// SIGPIPE is ignored (write errors say enough). SIGTERM becomes a wish to drain, taken by a thread
// of its own; call before any other thread starts, since the signal is blocked for all.
void route_signals(Inbox& inbox);

}  // namespace strata
