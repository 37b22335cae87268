// The chosen configuration axis by axis: what was asked, what runs, and why they differ.
#pragma once

#include <vector>

#include "engine/backend/evaluation.h"

namespace strata {

// `chosen` can run. An axis that was given up is reported with what is in the way of `chosen` with
// that axis set back to the asked value.
std::vector<ModeReport> report_modes(Evaluator& evaluator,
                                     const WantedModes& want,
                                     const Candidate& chosen);

}  // namespace strata
