// The configurations that negotiation tries, in order: what was asked, then with fewer and plainer
// values. Also the quarantine list, which takes values out.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/mode.h"

namespace strata {

// The axes on which kernels can be missing. Other values follow from these.
struct Candidate {
    uint32_t batch = 1;
    uint32_t prefill = 1;
    DType kv = DType::F32;
    DType activations = DType::F32;
};

class Quarantine {
  public:
    // Throws Error{InvalidRequest, "config.quarantine"} for an entry that names no axis.
    explicit Quarantine(const std::vector<std::string>& entries);
    // Whether a value of an axis must not be offered. Numbers at or above a listed one are hidden;
    // an axis listed without a value hides all but its plainest value.
    bool hides(const std::string& axis, const std::string& value) const;
    Reason reason(const std::string& what) const;  // "mode.quarantined"

  private:
    struct Entry {
        std::string axis;
        std::string value;  // empty: the whole axis
    };
    std::vector<Entry> entries_;
};

// Throws Error{InvalidRequest, "config.<axis>"} with the allowed range.
void validate_wanted(const WantedModes& want);

// What was asked, with "auto" and 0 replaced by what is tried first.
Candidate wanted_candidate(const WantedModes& want);

// All that may be offered, best first: those that give up fewer axes come first, then those that
// give up less on them (kv before activations before batch before prefill). The last is the
// plainest. Empty if quarantine leaves none.
std::vector<Candidate> list_candidates(const WantedModes& want, const Quarantine& quarantine);

// Names of the axes' values on the wire: "f16", "f32", "int8".
std::string kv_name(DType kv);
std::string activations_name(DType activations);
DType parse_kv(const std::string& name);           // Error "config.kv"
DType parse_activations(const std::string& name);  // Error "config.activations"

}  // namespace strata
