// Proof of a plan with drafts: the loop's own parts (scheduler, drafting, verification) serve small
// requests with as many drafts as the plan has, and must give the tokens and log-probabilities of
// the same requests without drafts, bit for bit. On the way the drafter is held to a floor: one
// that is never right is not of this model. Uses the runtime's pages freely: run it before any
// sequence.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/loop/probe.h"
#include "engine/plan/mode.h"

namespace strata {

class DraftProber {
  public:
    // Tokens generated behind the prompt: the model's own continuation is the fixed text on which
    // drafts are counted.
    static constexpr uint32_t kTokens = 16;
    // Of the drafts for the very next token the least that must be right. Trained drafters reach
    // 0.5 to 0.8; the head of another model, or one that is computed wrongly, about 1 / vocabulary.
    static constexpr double kAcceptanceMin = 0.05;

    // `runtime` is built for `plan`, which has drafts, and outlives the prober. `on_step` as for
    // Prober.
    DraftProber(Runtime& runtime, const ModePlan& plan, std::function<void()> on_step)
        : runtime_(runtime), plan_(plan), on_step_(std::move(on_step)) {}

    ProbeResult mtp();        // one sequence with drafts
    ProbeResult batch_mtp();  // two in the same steps

  private:
    struct Text {
        std::vector<int32_t> tokens;
        std::vector<double> logprobs;
        bool is_finite = true;
    };
    struct Run {
        std::vector<Text> texts;  // one a sequence
        uint64_t tried = 0;       // drafts for the next token
        uint64_t accepted = 0;    // of these
    };

    uint32_t prompt_tokens() const;
    // Serves texts `first` to `first + count - 1`, all at once.
    Run run(uint32_t first, uint32_t count, bool has_drafts);
    const Text& plain(uint32_t index);  // alone, without drafts
    std::vector<Reason> compare(const Run& with);

    Runtime& runtime_;
    ModePlan plan_;
    std::function<void()> on_step_;
    std::array<std::optional<Text>, 2> plain_;
};

}  // namespace strata
