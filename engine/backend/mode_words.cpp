#include "engine/backend/mode_words.h"

#include "engine/base/assert.h"

namespace strata {

namespace {

struct Word {
    DType type;
    std::string_view word;
};
constexpr Word kKvWords[] = {{DType::F32, "f32"},
                             {DType::F16, "f16"},
                             {DType::BF16, "bf16"},
                             {DType::Q8_0, "int8"},
                             {DType::Q4_0, "q4_0"}};
constexpr Word kActivationWords[] = {{DType::I8Block, "int8"}, {DType::F32, "f32"}};

template <size_t N>
std::string word_of(const Word (&words)[N], DType type) {
    for (const Word& entry : words) {
        if (entry.type == type) return std::string(entry.word);
    }
    STRATA_ASSERT(false, "the type has no word");
}

template <size_t N>
std::optional<DType> type_of(const Word (&words)[N], std::string_view word) {
    for (const Word& entry : words) {
        if (entry.word == word) return entry.type;
    }
    return std::nullopt;
}

template <size_t N>
std::string list_of(const Word (&words)[N]) {
    std::string list;
    for (const Word& entry : words) {
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
