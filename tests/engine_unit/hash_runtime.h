// A Runtime whose "model" is a hash of the history as the pages hold it: the KV of a token depends
// on everything before it, and the logits on every entry the row can see. Any error in paging,
// prefix reuse or preemption therefore changes tokens. `reference_logits` is the same model without
// pages. With slots for states, each sequence also has a recurrent state, the hashes behind its
// rows, and a step that finds another one fails the test.
//
// Its drafter is the same model again, on pages of its own and fed with hidden states that hold the
// history's hash: it guesses the best token of the model for certain, as long as every row of its
// cache was computed, from the right hidden state.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/base/error.h"
#include "engine/plan/mode.h"
#include "tests/engine_unit/check.h"

namespace strata::testing {

class HashRuntime final : public Runtime {
  public:
    HashRuntime(uint32_t vocab,
                uint32_t pages,
                uint32_t rows_max,
                uint32_t gather_max,
                uint32_t draft_gather_max = 0,
                uint32_t state_slots = 0)
        : vocab_(vocab),
          rows_max_(rows_max),
          gather_max_(gather_max),
          kv_(size_t{pages} * kPageTokens, 0xDEAD),
          logits_(size_t{gather_max} * vocab),
          hidden_(size_t{rows_max} * kWidth),
          drafts_(*this, pages, draft_gather_max),
          states_(state_slots) {}

    // Drafts are taken back from the states by this alone.
    void roll_back(uint32_t sequence, uint32_t position) override {
        if (!states_.empty()) states_[sequence].resize(position);
    }

    DraftSteps* drafts() override { return drafts_.gather_max() > 0 ? &drafts_ : nullptr; }

    void step(const RowView& rows) override {
        if (fault_next) {
            fault_next = false;
            throw Error(ErrorKind::Internal, "test.step", "the step was told to fail");
        }
        for (uint32_t i = 0; i < rows.copy_count; ++i)
            states_[rows.copies[i].to] = states_[rows.copies[i].from];
        for (uint32_t row = 0; row < rows.rows; ++row) {
            const uint32_t position = rows.positions[row];
            const uint64_t before = position == 0 ? 0 : entry(rows, row, position - 1);
            entry(rows, row, position) = mix(before, rows.tokens[row]);
            if (!states_.empty()) take_in(rows, row);
        }
        if (drafts_.gather_max() > 0) {
            for (uint32_t row = 0; row < rows.rows; ++row) {
                const History history{entry(rows, row, rows.positions[row]), seen(kv_, rows, row)};
                std::memcpy(&hidden_[size_t{row} * kWidth], &history, sizeof history);
            }
        }
        for (uint32_t i = 0; i < rows.gather_rows; ++i) {
            fill(seen(kv_, rows, rows.gather[i]), logits(i));
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

    bool fault_next = false;      // the next step throws
    uint64_t poison_every = 0;    // one history in so many gives NaN
    uint64_t misguess_every = 0;  // behind one history in so many the drafter guesses wrongly

  private:
    // A hidden state is the history: [width] floats that hold its two hashes.
    static constexpr uint32_t kWidth = sizeof(History) / sizeof(float);

    class HashDrafts final : public DraftSteps {
      public:
        HashDrafts(HashRuntime& model, uint32_t pages, uint32_t gather_max)
            : model_(model),
              gather_max_(gather_max),
              kv_(size_t{pages} * kPageTokens),
              input_(size_t{model.rows_max_} * kWidth),
              logits_(size_t{gather_max} * model.vocab_),
              hidden_(size_t{gather_max} * kWidth) {}

        uint32_t width() const override { return kWidth; }
        uint32_t rows_max() const override { return model_.rows_max_; }
        uint32_t gather_max() const override { return gather_max_; }
        const float* model_hidden(uint32_t row) const override {
            return &model_.hidden_[size_t{row} * kWidth];
        }
        float* input(uint32_t row) override { return &input_[size_t{row} * kWidth]; }
        float* logits(uint32_t index) override { return &logits_[size_t{index} * model_.vocab_]; }
        const float* hidden(uint32_t index) const override {
            return &hidden_[size_t{index} * kWidth];
        }

        void step(const RowView& rows) override {
            std::vector<History> after(rows.rows);
            for (uint32_t row = 0; row < rows.rows; ++row) {
                std::memcpy(static_cast<void*>(&after[row]), input(row), sizeof(History));
                after[row].push(rows.tokens[row]);
                place(kv_, rows, row, rows.positions[row]) = after[row];
            }
            for (uint32_t i = 0; i < rows.gather_rows; ++i) {
                const uint64_t seen = seen_by(rows, rows.gather[i]);
                model_.fill(seen, logits(i));
                std::memcpy(&hidden_[i * kWidth], &after[rows.gather[i]], sizeof(History));
                if (model_.misguess_every != 0 && (seen >> 9) % model_.misguess_every == 0) {
                    logits(i)[seen % model_.vocab_] = 1e9f;
                }
            }
        }

      private:
        // The history as the row finds it; another one where some row before it is not right.
        uint64_t seen_by(const RowView& rows, uint32_t row) {
            uint64_t seen = 0;
            bool is_right = true;
            for (uint32_t position = 0; position <= rows.positions[row]; ++position) {
                const History& entry = place(kv_, rows, row, position);
                seen = see(seen, entry.before);
                is_right = is_right && entry.seen == seen;
            }
            return is_right ? seen : ~seen;
        }

        HashRuntime& model_;
        uint32_t gather_max_;
        std::vector<History> kv_;  // of the draft layer: [pages, kPageTokens]
        std::vector<float> input_;
        std::vector<float> logits_;
        std::vector<float> hidden_;
    };

    static uint64_t mix(uint64_t before, int32_t token) {
        uint64_t h = (before + static_cast<uint64_t>(token) + 1) * 0x9E37'79B9'7F4A'7C15u;
        h ^= h >> 31;
        return h * 0xBF58'476D'1CE4'E5B9u;
    }
    static uint64_t see(uint64_t seen, uint64_t value) {
        return ((seen ^ value) * 31 + 7) ^ (seen >> 40);
    }

    using State = std::vector<uint64_t>;  // hash behind each row taken in

    void take_in(const RowView& rows, uint32_t row) {
        const uint32_t position = rows.positions[row];
        State& state = states_[rows.sequences[row]];
        if (position == 0) state.clear();
        CHECK(state.size() == position, "a state at another position", state.size(), position);
        state.push_back(mix(state.empty() ? 0 : state.back(), rows.tokens[row]));
        CHECK(state.back() == entry(rows, row, position), "another sequence's state", position);
    }

    template <class T>
    static T& place(std::vector<T>& kv, const RowView& rows, uint32_t row, uint32_t position) {
        const uint32_t* table =
            rows.page_tables + size_t{rows.sequences[row]} * rows.page_table_stride;
        return kv[size_t{table[position / kPageTokens]} * kPageTokens + position % kPageTokens];
    }
    uint64_t& entry(const RowView& rows, uint32_t row, uint32_t position) {
        return place(kv_, rows, row, position);
    }
    static uint64_t seen(std::vector<uint64_t>& kv, const RowView& rows, uint32_t row) {
        uint64_t seen = 0;
        for (uint32_t position = 0; position <= rows.positions[row]; ++position) {
            seen = see(seen, place(kv, rows, row, position));
        }
        return seen;
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
    std::vector<float> hidden_;  // of the rows of the last step
    HashDrafts drafts_;
    std::vector<State> states_;  // of sequences, then of checkpoints
};

}  // namespace strata::testing
