// Proof of a loaded plan: small real steps in each mode, held against the plain path (one sequence,
// its prompt in chunks of the plan's size, then one decode step). Logits must be finite and, since
// a row's arithmetic does not depend on what shares the step, equal bit for bit.
//
// A step of the probes carries at most kStepRowsMax rows, so that even a large model on a slow
// machine can report between two of them. Uses the runtime's pages freely: run it before any
// sequence does.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/base/error.h"
#include "engine/plan/mode.h"

namespace strata {

struct ProbeResult {
    std::string mode;
    std::vector<Reason> reasons;  // empty = proven
    bool is_ok() const { return reasons.empty(); }
};

class Prober {
  public:
    // One full tile of the widest matmul kernel; more rows only repeat it.
    static constexpr uint32_t kStepRowsMax = 8;

    // `runtime` is built for `plan` and outlives the prober. `on_step` is called behind every step
    // of the runtime; what it throws ends the probe. `on_context` is told each context that
    // max_context() is about to try.
    Prober(
        Runtime& runtime,
        const ModePlan& plan,
        std::function<void()> on_step,
        std::function<void(uint32_t)> on_context = [](uint32_t) {});

    ProbeResult solo();     // prompt and decode step of one sequence are finite
    ProbeResult prefill();  // the same prompt in other chunks
    ProbeResult batch();    // two sequences of different lengths in the same steps
    // A row at the last position that the plan allows is finite. Halvings of the context come
    // before it, the shortest first: whatever goes wrong at one leaves those before it proven.
    ProbeResult max_context();
    // The longest context that has been proven: by solo, then by max_context.
    uint32_t proven_context() const { return proven_context_; }

  private:
    // One sequence of a run: its tokens, where its KV goes, and the logits it got.
    struct Subject {
        uint32_t tokens = 0;  // prompt length; one decode step follows
        uint32_t seed = 0;    // chooses the token ids
        uint32_t first_page = 0;
        std::vector<float> after_prompt;  // [vocab]
        std::vector<float> after_decode;  // [vocab]
    };

    const Subject& plain(uint32_t index);
    void run(std::vector<Subject*> subjects, std::span<const uint32_t> chunks);
    void step(std::vector<Subject*>& subjects, std::vector<uint32_t>& done, uint32_t chunk);
    uint32_t rows_max() const;  // of one step
    Subject make_subject(uint32_t index, uint32_t pages_index) const;
    int32_t token(uint32_t seed, uint32_t position) const;
    bool is_finite_at(uint32_t position);
    static void compare(const Subject& subject,
                        const Subject& reference,
                        const std::string& how,
                        std::vector<Reason>& reasons);

    Runtime& runtime_;
    ModePlan plan_;
    std::function<void()> on_step_;
    uint32_t length_;      // tokens of the longer subject, without the decode step
    uint32_t pages_each_;  // pages of one subject
    uint32_t proven_context_ = 0;
    std::function<void(uint32_t)> on_context_;
    std::array<std::optional<Subject>, 2> plain_;
};

}  // namespace strata
