#include "engine/loop/intake.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/loop/convert.h"

namespace strata {

namespace {

void end(uint64_t rid,
         protocol::FinishReason reason,
         uint32_t prompt_tokens,
         uint32_t output_tokens,
         Effects& effects) {
    protocol::Done& done = effects.done.emplace_back();
    done.rid = rid;
    done.reason = reason;
    done.prompt_tokens = prompt_tokens;
    done.output_tokens = output_tokens;
}

void end_error(uint64_t rid,
               uint32_t prompt_tokens,
               uint32_t output_tokens,
               ErrorKind kind,
               Reason reason,
               Effects& effects) {
    end(rid, protocol::FinishReason::Error, prompt_tokens, output_tokens, effects);
    effects.done.back().error_kind = kind;
    effects.done.back().code = std::move(reason.code);
    effects.done.back().text = std::move(reason.text);
}

Reason invalid(const std::string& field, const std::string& text) {
    return {"request." + field, field + ": " + text};
}

}  // namespace

void Intake::submit(protocol::Submit&& message, uint64_t now_us, Effects& effects) {
    Partial partial;
    partial.rid = message.rid;
    partial.priority = message.priority;
    partial.prompt_tokens = message.prompt_tokens;
    partial.credit = message.credit;
    partial.mode = message.mode;
    partial.ids = std::move(message.ids);
    partial.params = from_wire(std::move(message.params));
    begin(std::move(partial), now_us, effects);
}

void Intake::resume(protocol::Resume&& message, uint64_t now_us, Effects& effects) {
    Partial partial;
    partial.rid = message.rid;
    partial.prompt_tokens = message.prompt_tokens;
    partial.credit = message.credit;
    partial.mode = message.mode;
    partial.ids = std::move(message.ids);
    partial.generated = std::move(message.generated);
    partial.params = from_wire(std::move(message.params));
    begin(std::move(partial), now_us, effects);
}

void Intake::begin(Partial&& partial, uint64_t now_us, Effects& effects) {
    partial.arrival = next_arrival_++;
    partial.submitted_us = now_us;
    const uint64_t rid = partial.rid;
    const auto output_tokens = static_cast<uint32_t>(partial.generated.size());
    if (scheduler_.has(rid) || partial_.contains(rid)) {
        // Two requests of one name cannot both be ended once; the name ends, once.
        Reason reason = invalid("rid", std::to_string(rid) + " is in use already");
        scheduler_.reject(rid, reason, now_us, effects);
        if (partial_.erase(rid) > 0) {
            end_error(rid, partial.prompt_tokens, 0, ErrorKind::InvalidRequest, reason, effects);
        }
        return;
    }
    if (is_draining_) {
        return end_error(rid,
                         partial.prompt_tokens,
                         output_tokens,
                         ErrorKind::Overloaded,
                         {"engine_draining", "the engine finishes its requests and takes no new"},
                         effects);
    }
    if (partial.mode >= modes_.size()) {
        return end_error(rid,
                         partial.prompt_tokens,
                         output_tokens,
                         ErrorKind::InvalidRequest,
                         invalid("mode",
                                 std::to_string(partial.mode) + "; this engine serves in " +
                                     std::to_string(modes_.size()) + ", counted from 0"),
                         effects);
    }
    if (auto reason = missing_feature(partial.params, modes_[partial.mode].features)) {
        return end_error(rid,
                         partial.prompt_tokens,
                         output_tokens,
                         ErrorKind::Unsupported,
                         std::move(*reason),
                         effects);
    }
    if (auto reason = problem(partial)) {
        return end_error(rid,
                         partial.prompt_tokens,
                         output_tokens,
                         ErrorKind::InvalidRequest,
                         std::move(*reason),
                         effects);
    }
    if (partial.ids.size() == partial.prompt_tokens) {
        return complete(std::move(partial), now_us, effects);
    }
    if (partial_.size() >= kPartialMax) {
        return end_error(
            rid,
            partial.prompt_tokens,
            output_tokens,
            ErrorKind::Overloaded,
            {"engine_queue_full", std::to_string(kPartialMax) + " prompts are incomplete already"},
            effects);
    }
    partial_.emplace(rid, std::move(partial));
}

void Intake::prompt(protocol::Prompt&& message, uint64_t now_us, Effects& effects) {
    const auto found = partial_.find(message.rid);
    if (found == partial_.end()) {
        scheduler_.reject(message.rid,
                          invalid("prompt", "more tokens for a prompt that is complete"),
                          now_us,
                          effects);
        return;
    }
    Partial& partial = found->second;
    std::optional<Reason> reason = bad_token("prompt", message.ids);
    if (message.offset != partial.ids.size()) {
        reason = invalid("prompt",
                         "offset " + std::to_string(message.offset) + " after " +
                             std::to_string(partial.ids.size()) + " tokens");
    } else if (message.ids.empty() ||
               message.ids.size() > partial.prompt_tokens - partial.ids.size()) {
        reason = invalid("prompt",
                         std::to_string(message.ids.size()) + " tokens at offset " +
                             std::to_string(message.offset) + " of " +
                             std::to_string(partial.prompt_tokens) +
                             "; at least one and no more than the rest is allowed");
    }
    if (reason) {
        end_error(message.rid,
                  partial.prompt_tokens,
                  static_cast<uint32_t>(partial.generated.size()),
                  ErrorKind::InvalidRequest,
                  std::move(*reason),
                  effects);
        partial_.erase(found);
        return;
    }
    partial.ids.insert(partial.ids.end(), message.ids.begin(), message.ids.end());
    if (partial.ids.size() < partial.prompt_tokens) return;
    Partial whole = std::move(partial);
    partial_.erase(found);
    complete(std::move(whole), now_us, effects);
}

void Intake::cancel(uint64_t rid, uint64_t now_us, Effects& effects) {
    const auto found = partial_.find(rid);
    if (found == partial_.end()) return scheduler_.cancel(rid, now_us, effects);
    end(rid,
        protocol::FinishReason::Cancelled,
        found->second.prompt_tokens,
        static_cast<uint32_t>(found->second.generated.size()),
        effects);
    partial_.erase(found);
}

void Intake::credit(uint64_t rid, uint32_t upto) {
    const auto found = partial_.find(rid);
    if (found == partial_.end()) return scheduler_.credit(rid, upto);
    found->second.credit = std::max(found->second.credit, upto);
}

void Intake::complete(Partial&& partial, uint64_t now_us, Effects& effects) {
    // The state counts what it will accept; no sequence grows past the context.
    const uint32_t output_max = std::min(partial.params.max_tokens, scheduler_.context());
    SamplingState sampling(std::move(partial.params), vocab_, partial.ids, output_max);
    sampling.replay(partial.generated);
    std::vector<int32_t> tokens = std::move(partial.ids);
    tokens.insert(tokens.end(), partial.generated.begin(), partial.generated.end());
    scheduler_.submit(Request{partial.rid,
                              partial.arrival,
                              partial.priority,
                              partial.prompt_tokens,
                              partial.credit,
                              partial.submitted_us,
                              std::move(tokens),
                              std::move(sampling),
                              modes_[partial.mode].drafts > 0},
                      now_us,
                      effects);
}

std::optional<Reason> Intake::problem(const Partial& partial) const {
    if (partial.prompt_tokens == 0) return invalid("prompt_tokens", "0; at least 1 is needed");
    if (partial.ids.size() > partial.prompt_tokens) {
        return invalid("ids",
                       std::to_string(partial.ids.size()) + " tokens of a prompt of " +
                           std::to_string(partial.prompt_tokens));
    }
    const uint32_t max_tokens = partial.params.max_tokens;
    if (auto reason = scheduler_.refusal(partial.prompt_tokens, max_tokens)) return reason;
    const size_t generated_max =
        std::min<size_t>(max_tokens, scheduler_.context() - partial.prompt_tokens);
    if (partial.generated.size() > generated_max) {
        return invalid("generated",
                       std::to_string(partial.generated.size()) +
                           " tokens; max_tokens and the context allow " +
                           std::to_string(generated_max));
    }
    if (auto reason = bad_token("ids", partial.ids)) return reason;
    if (auto reason = bad_token("generated", partial.generated)) return reason;
    return validate(partial.params, vocab_);
}

std::optional<Reason> Intake::bad_token(const char* field, const std::vector<int32_t>& ids) const {
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < vocab_) continue;
        return invalid(field,
                       "token " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                           "; the model has tokens 0 to " + std::to_string(vocab_ - 1));
    }
    return std::nullopt;
}

}  // namespace strata
