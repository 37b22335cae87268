// Turns SUBMIT, RESUME and PROMPT into checked Requests. Owns the prompts that have not arrived in
// full. Everything a peer can get wrong about one request ends that request (DONE with
// invalid_request and the field, value and allowed range, or with unsupported and the feature that
// its serving mode lacks) and nothing else; a PROMPT for a request that is not here is ignored,
// because it may just have ended.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/loop/effects.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/serving_modes.h"
#include "protocol/cpp/messages.h"

namespace strata {

class Intake {
  public:
    static constexpr size_t kPartialMax = 1024;  // prompts that may be incomplete at once

    // `scheduler` outlives the intake. `vocab`: tokens of the model. `modes`: what READY states; a
    // request that asks for more than its mode has is refused, so nothing it asks for is dropped.
    Intake(Scheduler& scheduler, uint32_t vocab, std::vector<ServingMode> modes)
        : scheduler_(scheduler), vocab_(vocab), modes_(std::move(modes)) {}

    void submit(protocol::Submit&& message, uint64_t now_us, Effects& effects);
    void resume(protocol::Resume&& message, uint64_t now_us, Effects& effects);
    void prompt(protocol::Prompt&& message, uint64_t now_us, Effects& effects);
    void cancel(uint64_t rid, uint64_t now_us, Effects& effects);
    void credit(uint64_t rid, uint32_t upto);

    // While draining nothing new is taken; what has begun to arrive may complete.
    void drain() { is_draining_ = true; }

    bool is_empty() const { return partial_.empty(); }
    uint32_t partial_count() const { return static_cast<uint32_t>(partial_.size()); }

  private:
    // A request on its way in.
    struct Partial {
        uint64_t rid = 0;
        uint64_t arrival = 0;
        int64_t priority = 0;
        uint32_t prompt_tokens = 0;
        uint32_t credit = 0;
        uint32_t mode = 0;
        uint64_t submitted_us = 0;
        std::vector<int32_t> ids;        // of the prompt, as far as it has come
        std::vector<int32_t> generated;  // by an earlier engine
        SamplingParams params;
    };

    void begin(Partial&& partial, uint64_t now_us, Effects& effects);
    void complete(Partial&& partial, uint64_t now_us, Effects& effects);
    std::optional<Reason> problem(const Partial& partial) const;
    std::optional<Reason> bad_token(const char* field, const std::vector<int32_t>& ids) const;

    Scheduler& scheduler_;
    uint32_t vocab_;
    std::vector<ServingMode> modes_;
    uint64_t next_arrival_ = 0;
    bool is_draining_ = false;
    std::unordered_map<uint64_t, Partial> partial_;
};

}  // namespace strata
