// When to report again: at most once per interval. Has no clock of its own.
#pragma once

#include <chrono>
#include <optional>

namespace strata {

class Pace {
  public:
    using Time = std::chrono::steady_clock::time_point;

    explicit Pace(std::chrono::milliseconds interval) : interval_(interval) {}

    // True the first time, and once `interval` has passed since it last was; then it starts anew.
    bool is_due(Time now) {
        if (last_ && now - *last_ < interval_) return false;
        last_ = now;
        return true;
    }

    // Somebody reported for another reason: the interval starts anew.
    void restart(Time now) { last_ = now; }

  private:
    std::chrono::milliseconds interval_;
    std::optional<Time> last_;
};

}  // namespace strata
