// From HELLO to READY and into the loop: the engine's side of the handshake. Nothing is touched
// that the phase does not need: CAPS comes from file headers, weights load after PLAN.
#pragma once

#include <string>
#include <vector>

#include "engine/base/beacon.h"
#include "engine/loop/backend.h"
#include "engine/loop/channel.h"
#include "engine/loop/inbox.h"
#include "engine/loop/vitals.h"

namespace strata {

struct BootOptions {
    std::string build;                         // version and build id
    std::vector<std::string> without_kernels;  // besides those of OFFER
    bool fixed_drafts = false;                 // as many drafts as the plan has in every step
};

// Runs the engine to its end and returns how it ended; REFUSE or DYING are sent where the outcome
// is one. Throws Error for what makes the start impossible (give_up tells it).
protocol::ExitCode serve(Backend& backend,
                         const BootOptions& options,
                         Channel& channel,
                         Inbox& inbox,
                         Vitals& vitals,
                         Beacon& beacon);

// The backend's kernels behind `--without-kernel` masks. Throws Error "config.without_kernel". A
// mask that names no kernel changes nothing, which a line on stderr says: another build or
// processor may have the kernel.
Registry make_registry(const Backend& backend, const std::vector<std::string>& without_kernels);

// Tells the supervisor why there will be no service and ends the process: REFUSE where the same
// start would fail again, DYING otherwise.
[[noreturn]] void give_up(Channel& channel, const Error& error);

}  // namespace strata
