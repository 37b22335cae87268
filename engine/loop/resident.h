// How much memory the process keeps resident, for STATS. Asked between steps, so it neither
// allocates nor opens anything: the descriptor stays open.
#pragma once

#include <cstdint>

namespace strata {

class ResidentMeter {
  public:
    ResidentMeter();
    ~ResidentMeter();
    ResidentMeter(const ResidentMeter&) = delete;
    ResidentMeter& operator=(const ResidentMeter&) = delete;

    uint64_t bytes() const;  // 0 where the system does not say

  private:
    int fd_ = -1;
    uint64_t page_bytes_ = 0;
};

}  // namespace strata
