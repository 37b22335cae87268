// A Runtime whose "model" is a hash of the history as the pages hold it: the KV of a token depends
// on everything before it, and the logits on every entry the row can see. Any error in paging,
// prefix reuse or preemption therefore changes tokens. `next_token` is the same model without
// pages.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/base/error.h"
#include "engine/plan/mode.h"

namespace strata::testing {

class HashRuntime final : public Runtime {
  public:
    HashRuntime(uint32_t vocab, uint32_t pages, uint32_t rows_max, uint32_t gather_max)
        : vocab_(vocab),
          rows_max_(rows_max),
          gather_max_(gather_max),
          kv_(size_t{pages} * kPageTokens, 0xDEAD),
          logits_(size_t{gather_max} * vocab) {}

    void step(const RowView& rows) override {
        if (fault_next) {
            fault_next = false;
            throw Error(ErrorKind::Internal, "test.step", "the step was told to fail");
        }
        for (uint32_t row = 0; row < rows.rows; ++row) {
            const uint32_t position = rows.positions[row];
            const uint64_t before = position == 0 ? 0 : entry(rows, row, position - 1);
            entry(rows, row, position) = mix(before, rows.tokens[row]);
        }
        for (uint32_t i = 0; i < rows.gather_rows; ++i) {
            const uint32_t row = rows.gather[i];
            uint64_t seen = 0;
            for (uint32_t position = 0; position <= rows.positions[row]; ++position) {
                seen = see(seen, entry(rows, row, position));
            }
            fill(seen, logits(i));
        }
    }

    float* logits(uint32_t index) override { return &logits_[size_t{index} * vocab_]; }
    uint32_t vocab() const override { return vocab_; }
    uint32_t rows_max() const override { return rows_max_; }
    uint32_t gather_max() const override { return gather_max_; }

    // The same model without pages: push() the history, then read the logits [vocab] behind it.
    struct History {
        uint64_t before = 0;
        uint64_t seen = 0;
        void push(int32_t token) {
            before = mix(before, token);
            seen = see(seen, before);
        }
    };
    void reference_logits(const History& history, float* out) const { fill(history.seen, out); }

    bool fault_next = false;    // the next step throws
    uint64_t poison_every = 0;  // one history in so many gives NaN

  private:
    static uint64_t mix(uint64_t before, int32_t token) {
        uint64_t h = (before + static_cast<uint64_t>(token) + 1) * 0x9E37'79B9'7F4A'7C15u;
        h ^= h >> 31;
        return h * 0xBF58'476D'1CE4'E5B9u;
    }
    static uint64_t see(uint64_t seen, uint64_t value) {
        return ((seen ^ value) * 31 + 7) ^ (seen >> 40);
    }

    uint64_t& entry(const RowView& rows, uint32_t row, uint32_t position) {
        const uint32_t* table =
            rows.page_tables + size_t{rows.sequences[row]} * rows.page_table_stride;
        return kv_[size_t{table[position / kPageTokens]} * kPageTokens + position % kPageTokens];
    }

    void fill(uint64_t seen, float* out) const {
        for (uint32_t v = 0; v < vocab_; ++v) {
            out[v] = static_cast<float>(mix(seen, static_cast<int32_t>(v)) >> 40) * 0x1p-22f;
        }
        if (poison_every != 0 && (seen >> 20) % poison_every == 0) {
            out[0] = std::numeric_limits<float>::quiet_NaN();
        }
    }

    uint32_t vocab_;
    uint32_t rows_max_;
    uint32_t gather_max_;
    std::vector<uint64_t> kv_;  // [pages, kPageTokens]
    std::vector<float> logits_;
};

}  // namespace strata::testing
