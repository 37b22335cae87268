#include "engine/backend/mode_words.h"

#include "engine/base/assert.h"
#include "engine/plan/type_words.h"

namespace strata {

namespace {

template <size_t N>
std::string word_of(const TypeWord (&words)[N], DType type) {
    for (const TypeWord& entry : words) {
        if (entry.type == type) return std::string(entry.word);
    }
    STRATA_ASSERT(false, "the type has no word");
}

template <size_t N>
std::optional<DType> type_of(const TypeWord (&words)[N], std::string_view word) {
    for (const TypeWord& entry : words) {
        if (entry.word == word) return entry.type;
    }
    return std::nullopt;
}

template <size_t N>
std::string list_of(const TypeWord (&words)[N]) {
    std::string list;
    for (const TypeWord& entry : words) {
        list += (list.empty() ? "" : ", ") + std::string(entry.word);
    }
    return list;
}

}  // namespace

std::string kv_name(DType kv) {
    return word_of(kKvWords, kv);
}

std::string activations_name(DType activations) {
    return word_of(kActivationWords, activations);
}

std::optional<DType> find_kv(std::string_view word) {
    return type_of(kKvWords, word);
}

std::optional<DType> find_activations(std::string_view word) {
    return type_of(kActivationWords, word);
}

std::string kv_words() {
    return list_of(kKvWords);
}

std::string activations_words() {
    return list_of(kActivationWords);
}

}  // namespace strata
