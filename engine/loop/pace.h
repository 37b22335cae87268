// When to report again: at most once per interval. Has no clock of its own.
#pragma once

#include <chrono>

namespace strata {

class Pace {
  public:
    using Time = std::chrono::steady_clock::time_point;

    explicit Pace(std::chrono::milliseconds interval) : interval_(interval) {}

    // True the first time, and once `interval` has passed since it last was; then it starts anew.
    bool is_due(Time now) {
        if (now < next_) return false;
        next_ = now + interval_;
        return true;
    }

    // Somebody reported for another reason: the interval starts anew.
    void restart(Time now) { next_ = now + interval_; }

  private:
    std::chrono::milliseconds interval_;
    Time next_ = Time::min();  // when a report is due again
};

}  // namespace strata
