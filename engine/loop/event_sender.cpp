#include "engine/loop/event_sender.h"

#include <utility>

#include "engine/loop/convert.h"

namespace strata {

namespace {

// Upper bounds of encoded sizes (MessagePack, protocol/README.md).
constexpr size_t kFrameBytes = 128;      // header, tag and fixed fields of a frame
constexpr size_t kItemBytes = 48;        // rid, offset, one id and the arrays around them
constexpr size_t kLogprobBytes = 16;     // a float and the array headers
constexpr size_t kTopBytes = 16;         // token, float, array header
constexpr size_t kDoneTextBytes = 1024;  // longer texts are cut
constexpr size_t kDoneBytes = kDoneTextBytes + 512;

size_t bytes_of(const TokenLogprob* logprob) {
    return logprob ? kLogprobBytes + logprob->top_count * kTopBytes : 0;
}

}  // namespace

size_t EventSender::step_bytes_max(uint32_t batch, uint32_t gather_max) {
    const size_t logprob = kLogprobBytes + kTopLogprobsMax * kTopBytes;
    return size_t{batch} * (kItemBytes + kDoneBytes) +
           size_t{gather_max} * (logprob + kFrameBytes) + kFrameBytes;
}

void EventSender::send(uint64_t step, Effects& effects) {
    send_scores(effects);
    send_tokens(step, effects);
    for (protocol::Done& done : effects.done) {
        if (done.text.size() > kDoneTextBytes) done.text.resize(kDoneTextBytes);
        channel_.send(done);
    }
    effects.clear();
}

void EventSender::send_scores(const Effects& effects) {
    for (const PromptLogprobEffect& effect : effects.prompt_logprobs) {
        const size_t bytes = bytes_of(effect.logprob);
        const bool continues = !scores_.logprobs.empty() && scores_.rid == effect.rid &&
                               scores_.offset + scores_.logprobs.size() == effect.offset &&
                               scores_bytes_ + bytes <= limits_.data_bytes;
        if (!continues) {
            flush_scores();
            scores_.rid = effect.rid;
            scores_.offset = effect.offset;
            scores_bytes_ = kFrameBytes;
        }
        to_wire(*effect.logprob, scores_.logprobs.emplace_back());
        scores_bytes_ += bytes;
    }
    flush_scores();
}

void EventSender::flush_scores() {
    if (scores_.logprobs.empty()) return;
    channel_.send(scores_);
    scores_.logprobs.clear();
}

void EventSender::send_tokens(uint64_t step, const Effects& effects) {
    tokens_.step = step;
    tokens_bytes_ = kFrameBytes;
    for (const TokenEffect& effect : effects.tokens) {
        const size_t bytes = kItemBytes + bytes_of(effect.logprob);
        if (tokens_bytes_ + bytes > limits_.data_bytes) flush_tokens();
        add_token(effect);
        tokens_bytes_ += bytes;
    }
    flush_tokens();
}

void EventSender::add_token(const TokenEffect& effect) {
    if (!tokens_.items.empty() && tokens_.items.back().rid == effect.rid) {
        protocol::TokensItem& item = tokens_.items.back();
        item.ids.push_back(effect.token);
        if (effect.logprob) to_wire(*effect.logprob, item.logprobs.emplace_back());
        return;
    }
    if (spare_items_.empty()) spare_items_.emplace_back();
    protocol::TokensItem& item = tokens_.items.emplace_back(std::move(spare_items_.back()));
    spare_items_.pop_back();
    item.rid = effect.rid;
    item.offset = effect.offset;
    item.ids.assign(1, effect.token);
    item.logprobs.resize(effect.logprob ? 1 : 0);
    if (effect.logprob) to_wire(*effect.logprob, item.logprobs[0]);
}

void EventSender::flush_tokens() {
    if (tokens_.items.empty()) return;
    channel_.send(tokens_);
    for (protocol::TokensItem& item : tokens_.items) spare_items_.push_back(std::move(item));
    tokens_.items.clear();
    tokens_bytes_ = kFrameBytes;
}

}  // namespace strata
