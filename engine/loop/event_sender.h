// Puts the scheduler's effects on the channel: scores, then the step's tokens in one frame, then
// the ends of requests. Owns the reused messages; splits what would not fit one frame.
#pragma once

#include <vector>

#include "engine/loop/channel.h"
#include "engine/loop/effects.h"

namespace strata {

class EventSender {
  public:
    // `limits`: as agreed in READY.
    EventSender(Channel& channel, const protocol::Limits& limits)
        : channel_(channel), limits_(limits) {}

    // `step`: counter of the step that the effects come from.
    void send(uint64_t step, Effects& effects);

    // Most bytes that the effects of one step can take on the wire.
    static size_t step_bytes_max(uint32_t batch, uint32_t gather_max);

  private:
    void send_scores(const Effects& effects);
    void send_tokens(uint64_t step, const Effects& effects);
    void flush_scores();
    void flush_tokens();
    void add_token(const TokenEffect& effect);

    Channel& channel_;
    protocol::Limits limits_;
    protocol::PromptLogprobs scores_;
    size_t scores_bytes_ = 0;
    protocol::Tokens tokens_;
    size_t tokens_bytes_ = 0;
    // Items keep their memory here between steps.
    std::vector<protocol::TokensItem> spare_items_;
};

}  // namespace strata
