// Types of the KV cache and of activations to and from their words (type_words.h), for
// configuration, plans and quarantine entries.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/quant/dtype.h"

namespace strata {

// "f32", "f16", "bf16", "int8" (Q8_0), "q4_0". The type must be one of these.
std::string kv_name(DType kv);
// "int8" (I8Block), "f32". The type must be one of these.
std::string activations_name(DType activations);

// nullopt for a word that names none.
std::optional<DType> find_kv(std::string_view word);
std::optional<DType> find_activations(std::string_view word);

// All words, "f32, f16, ...", for errors.
std::string kv_words();
std::string activations_words();

}  // namespace strata
