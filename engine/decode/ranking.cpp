// One pass for the column maxima, selection by a bound from them, radix sort for long prefixes.
#include "engine/decode/ranking.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

namespace strata {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kColumnsMax = 4096;  // 16 KiB of maxima stay in the first-level cache
constexpr size_t kRowsMin = 8;
constexpr size_t kFirstRanks = 64;  // least that is ranked at once
constexpr size_t kSortMax = 2048;   // more than these are sorted by radix

// Has its top bit set if x is NaN or infinite: only then does one more exponent step overflow
// the exponent field.
uint32_t overflow_bit(float x) {
    return (std::bit_cast<uint32_t>(x) & 0x7f80'0000) + 0x0080'0000;
}

float larger(float a, float b) {
    return a > b ? a : b;
}

// max[i] = the largest of max[i], x[i] and y[i]. The result's top bit is set if any x or y is NaN
// or infinite. Two rows at once halve the traffic on `max`; y may equal x.
uint32_t fold_rows(float* __restrict max,
                   const float* __restrict x,
                   const float* __restrict y,
                   size_t n) {
    uint32_t bits = 0;
    for (size_t i = 0; i < n; ++i) {
        bits |= overflow_bit(x[i]) | overflow_bit(y[i]);
        max[i] = larger(larger(x[i], y[i]), max[i]);
    }
    return bits;
}

// Folds the upper half of `max` [2 * n] onto the lower, n halved until `count` are left.
void fold_columns(float* max, size_t n, size_t count) {
    for (; n > count; n /= 2)
        for (size_t i = 0; i < n / 2; ++i) max[i] = larger(max[i + n / 2], max[i]);
}

// Ascending by the upper 32 bits, stable; `keys` come in ascending order of the lower 32.
void sort_by_logit(std::vector<RankKey>& keys, std::vector<RankKey>& spare, size_t n) {
    constexpr uint32_t kBits = 11;
    constexpr uint32_t kPasses = 3;
    constexpr size_t kBuckets = size_t{1} << kBits;
    const auto bucket = [](RankKey key, uint32_t pass) {
        return key >> (32 + kBits * pass) & (kBuckets - 1);
    };
    std::array<std::array<uint32_t, kBuckets>, kPasses> starts{};
    for (size_t i = 0; i < n; ++i)
        for (uint32_t pass = 0; pass < kPasses; ++pass) ++starts[pass][bucket(keys[i], pass)];
    for (uint32_t pass = 0; pass < kPasses; ++pass) {
        auto& start = starts[pass];
        std::exclusive_scan(start.begin(), start.end(), start.begin(), 0u);
        for (size_t i = 0; i < n; ++i) spare[start[bucket(keys[i], pass)]++] = keys[i];
        keys.swap(spare);
    }
}

}  // namespace

RankKey rank_key(float logit, uint32_t token) {
    // Adding +0 turns -0.0 into +0.0, which ties with it.
    const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
    // Negative floats grow with their bits: turned over they ascend, then all are turned over.
    const uint32_t descending = (bits & 0x8000'0000) != 0 ? bits : ~(bits | 0x8000'0000);
    return uint64_t{descending} << 32 | token;
}

float rank_logit(RankKey key) {
    const auto descending = static_cast<uint32_t>(key >> 32);
    const uint32_t bits = (descending & 0x8000'0000) != 0 ? descending : ~descending & 0x7fff'ffff;
    return std::bit_cast<float>(bits);
}

int32_t rank_token(RankKey key) {
    return static_cast<int32_t>(key & 0x7fff'ffff);
}

Ranking::Ranking(uint32_t vocab)
    : vocab_(vocab),
      columns_(std::clamp(std::bit_floor(vocab / kRowsMin), size_t{1}, kColumnsMax)),
      column_max_(columns_),
      fold_(columns_),
      keys_(vocab),
      spare_(vocab) {}

bool Ranking::begin(const float* x) {
    x_ = x;
    ranked_ = 0;
    is_complete_ = false;
    std::fill(column_max_.begin(), column_max_.end(), kNone);
    uint32_t bits = 0;
    size_t at = 0;
    for (; at + 2 * columns_ <= vocab_; at += 2 * columns_)
        bits |= fold_rows(column_max_.data(), x + at, x + at + columns_, columns_);
    for (; at < vocab_; at += columns_)
        bits |= fold_rows(column_max_.data(), x + at, x + at, std::min(columns_, vocab_ - at));

    std::copy(column_max_.begin(), column_max_.end(), fold_.begin());
    fold_columns(fold_.data(), columns_, 1);
    best_ = fold_[0];
    return bits >> 31 == 0;
}

int32_t Ranking::best_token() const {
    size_t token = vocab_;
    for (size_t column = 0; column < columns_; ++column) {
        if (column_max_[column] != best_) continue;
        size_t i = column;
        while (x_[i] != best_) i += columns_;
        token = std::min(token, i);
    }
    return static_cast<int32_t>(token);
}

std::span<const RankKey> Ranking::first(size_t count) {
    if (ranked_ < count && !is_complete_) {
        // Growth by eights keeps the work of all extensions near that of the last.
        const size_t wanted = std::max({count, 8 * ranked_, kFirstRanks});
        if (4 * wanted <= columns_) {
            rank_above(wanted);
        } else {
            rank_all(kNone);
        }
    }
    return {keys_.data(), ranked_};
}

// The `count`-th largest of any set of column maxima is a bound that at least `count` logits
// reach: ranks all logits not below it.
void Ranking::rank_above(size_t count) {
    const size_t folded = std::clamp(std::bit_ceil(8 * count), size_t{1}, columns_);
    std::copy(column_max_.begin(), column_max_.end(), fold_.begin());
    fold_columns(fold_.data(), columns_, folded);
    const auto nth = fold_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(
        fold_.begin(), nth, fold_.begin() + static_cast<std::ptrdiff_t>(folded), std::greater<>());
    const float least = *nth;
    if (least == kNone) return rank_all(kNone);

    size_t found = 0;
    for (size_t column = 0; column < columns_; ++column) {
        if (column_max_[column] < least) continue;
        for (size_t i = column; i < vocab_; i += columns_) {
            if (x_[i] < least) continue;
            if (found == kSortMax) return rank_all(least);  // many ties
            keys_[found++] = rank_key(x_[i], static_cast<uint32_t>(i));
        }
    }
    std::sort(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(found));
    ranked_ = found;
}

// Ranks all logits not below `least` that are above -inf.
void Ranking::rank_all(float least) {
    size_t found = 0;
    for (uint32_t i = 0; i < vocab_; ++i) {
        keys_[found] = rank_key(x_[i], i);
        found += x_[i] >= least && x_[i] != kNone ? 1 : 0;
    }
    sort_by_logit(keys_, spare_, found);
    ranked_ = found;
    is_complete_ = least == kNone;
}

}  // namespace strata
