// Sizes of architecture `qwen4exp` from GGUF metadata.
#pragma once

#include <string_view>

#include "engine/model/hparams.h"

namespace strata {

// Throws Error "model.metadata" that names the key: InvalidRequest for values out of range or at
// odds with each other, Unsupported for what would change the arithmetic.
Hparams read_qwen4exp_hparams(const gguf::File& file, std::string_view architecture);

}  // namespace strata
