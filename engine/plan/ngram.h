// Which rows of a table stand for the n-grams that end at a token: the hash, and the constants that
// a model's metadata gives for it.
//
// With c0 the token, c1 and c2 those before it (of a sequence's first tokens those that are missing
// are `eos`; behind an `eos` all earlier ones are) the hash of the last n tokens is the exclusive
// or of c_j * multiplier_j, j < n, in 64 bits. Head h of the n-grams of n tokens has row hash mod
// size_h + offset_h; bigrams come first.
#pragma once

#include <cstdint>

namespace strata {

inline constexpr uint32_t kNgramTokensMax = 8;

// Where the parts lie in one list of words: multipliers [tokens], sizes [heads], offsets [heads],
// eos.
struct NgramHash {
    uint32_t tokens = 0;  // of the longest n-gram
    uint32_t heads = 0;   // of all n-grams, a multiple of tokens - 1
    const uint64_t* multipliers = nullptr;
    const uint64_t* sizes = nullptr;  // not 0
    const uint64_t* offsets = nullptr;
    uint64_t eos = 0;

    // `context` [tokens]: the token, then those before it. Writes rows [heads].
    void rows(const uint64_t* context, uint32_t* out) const {
        const uint32_t heads_per_ngram = heads / (tokens - 1);
        uint64_t hash = context[0] * multipliers[0];
        for (uint32_t n = 1; n < tokens; ++n) {
            hash ^= context[n] * multipliers[n];
            const uint32_t first = (n - 1) * heads_per_ngram;
            for (uint32_t h = first; h < first + heads_per_ngram; ++h)
                out[h] = static_cast<uint32_t>(hash % sizes[h] + offsets[h]);
        }
    }
};

inline uint64_t ngram_words(uint32_t tokens, uint32_t heads) {
    return uint64_t{tokens} + 2ull * heads + 1;
}

inline NgramHash ngram_view(const uint64_t* words, uint32_t tokens, uint32_t heads) {
    return {
        tokens, heads, words, words + tokens, words + tokens + heads, words[tokens + 2ull * heads]};
}

}  // namespace strata
