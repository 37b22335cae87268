// The programs and libraries of this process as the beacon lists them, so that a reader can tell an
// address of a backtrace as a file and an offset.
#pragma once

#include "engine/base/beacon_layout.h"

namespace strata {

// Fills modules, module_count and build_id. Not for signal handlers.
void list_modules(BeaconPage& page);

}  // namespace strata
