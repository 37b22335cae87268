// The quarantine list of OFFER: values of modes that crashed before and must not run now.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace strata {

class Quarantine {
  public:
    // Entries are AXIS or AXIS=VALUE. Throws Error{InvalidRequest, "config.quarantine"} for one
    // that names no axis.
    explicit Quarantine(const std::vector<std::string>& entries);

    // Whether a value of an axis must not run. Numbers at or above a listed one are hidden; an axis
    // listed without a value hides all but its plainest value (numbers: all above it).
    bool hides(std::string_view axis, std::string_view value) const;

    // "mode.quarantined", naming the value and the entries that hide it.
    Reason reason(std::string_view axis, std::string_view value) const;

  private:
    struct Entry {
        std::string axis;
        std::string value;  // empty: the whole axis
    };
    static bool hides(const Entry& entry, std::string_view axis, std::string_view value);

    std::vector<Entry> entries_;
};

}  // namespace strata
