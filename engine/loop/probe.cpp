#include "engine/loop/probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace strata {

namespace {

// Two pages and a bit less than a third: page borders and part-filled pages are met.
constexpr uint32_t kProbeTokens = 73;
// Rows of a decode step and odd few, which end within pages and cross them. The prompt's last row
// shares a step of 7 here and one of kStepRowsMax on the plain path.
constexpr uint32_t kOddChunks[] = {1, 7, 5, 3};

bool is_finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace

Prober::Prober(Runtime& runtime,
               const ModePlan& plan,
               std::function<void()> on_step,
               std::function<void(uint32_t)> on_context)
    : runtime_(runtime),
      plan_(plan),
      on_step_(std::move(on_step)),
      on_context_(std::move(on_context)) {
    // Two subjects must fit the pool where it has two pages at all.
    const uint64_t pool_share = uint64_t{std::max(plan.pages() / 2, 1u)} * kPageTokens;
    const uint64_t most = std::min<uint64_t>({kProbeTokens, plan.max_context, pool_share});
    length_ = static_cast<uint32_t>(std::max<uint64_t>(most, 2) - 1);
    pages_each_ = (length_ + kPageTokens) / kPageTokens;
}

ProbeResult Prober::solo() {
    ProbeResult result{"solo", {}};
    const Subject& subject = plain(0);
    if (!is_finite(subject.after_prompt) || !is_finite(subject.after_decode)) {
        result.reasons.push_back({"numeric.logits",
                                  "the logits behind a prompt of " + std::to_string(length_) +
                                      " tokens are not finite"});
    }
    // What batch() compares with runs alone as well: dying in it says nothing about batches.
    if (plan_.batch > 1 && plan_.pages() >= 2 * pages_each_) plain(1);
    return result;
}

ProbeResult Prober::prefill() {
    ProbeResult result{"prefill", {}};
    const Subject& reference = plain(0);
    const bool has_other_pages = plan_.pages() >= 2 * pages_each_;
    Subject subject = make_subject(0, has_other_pages ? 1 : 0);
    run({&subject}, kOddChunks);
    compare(subject, reference, "in chunks of other sizes", result.reasons);
    return result;
}

ProbeResult Prober::batch() {
    ProbeResult result{"batch", {}};
    if (plan_.pages() < 2 * pages_each_) {
        result.reasons.push_back({"mem.kv_budget",
                                  "the KV pool has " + std::to_string(plan_.pages()) +
                                      " pages; two sequences need " +
                                      std::to_string(2 * pages_each_)});
        return result;
    }
    const Subject* references[] = {&plain(0), &plain(1)};
    // Each on the other's pages: what it does not write itself is wrong there.
    Subject subjects[] = {make_subject(0, 1), make_subject(1, 0)};
    const uint32_t chunks[] = {std::max(rows_max() / 2, 1u)};
    run({&subjects[0], &subjects[1]}, chunks);
    for (int i = 0; i < 2; ++i) {
        compare(subjects[i], *references[i], "beside another sequence", result.reasons);
    }
    return result;
}

ProbeResult Prober::max_context() {
    ProbeResult result{"max_context", {}};
    plain(0);
    proven_context_ = length_ + 1;  // the decode step behind the prompt
    std::vector<uint32_t> contexts;
    uint64_t context = std::min<uint64_t>(plan_.max_context, plan_.kv_tokens);
    for (; context > proven_context_; context /= 2) {
        contexts.push_back(static_cast<uint32_t>(context));
    }
    std::reverse(contexts.begin(), contexts.end());
    for (const uint32_t tried : contexts) {
        on_context_(tried);
        if (!is_finite_at(tried - 1)) {
            result.reasons.push_back(
                {"numeric.logits",
                 "the logits at position " + std::to_string(tried - 1) + " are not finite"});
            return result;
        }
        proven_context_ = tried;
    }
    return result;
}

// Every page of the sequence is the probe's first one: real keys and values, and cheap.
bool Prober::is_finite_at(uint32_t position) {
    const std::vector<uint32_t> table(plan_.pages_per_sequence(), 0);
    const int32_t id = token(1, position);
    const uint32_t sequence = 0;
    const uint32_t gather = 0;
    RowView rows;
    rows.rows = 1;
    rows.tokens = &id;
    rows.positions = &position;
    rows.sequences = &sequence;
    rows.page_tables = table.data();
    rows.page_table_stride = plan_.pages_per_sequence();
    rows.gather = &gather;
    rows.gather_rows = 1;
    runtime_.assume_position(sequence, position);
    runtime_.step(rows);
    on_step_();
    const float* logits = runtime_.logits(0);
    return is_finite({logits, logits + runtime_.vocab()});
}

// The plain path: alone, the prompt in chunks as large as plan and probe have them. Computed once;
// what is in its pages does not last.
const Prober::Subject& Prober::plain(uint32_t index) {
    std::optional<Subject>& subject = plain_[index];
    if (!subject) {
        subject = make_subject(index, index);
        const uint32_t chunks[] = {plan_.prefill};
        run({&*subject}, chunks);
    }
    return *subject;
}

Prober::Subject Prober::make_subject(uint32_t index, uint32_t pages_index) const {
    Subject subject;
    subject.tokens = index == 0 ? length_ : std::max(length_ * 3 / 5, 1u);
    subject.seed = index + 1;
    subject.first_page = pages_index * pages_each_;
    subject.after_prompt.resize(runtime_.vocab());
    subject.after_decode.resize(runtime_.vocab());
    return subject;
}

int32_t Prober::token(uint32_t seed, uint32_t position) const {
    return static_cast<int32_t>((uint64_t{seed} * 7919 + uint64_t{position} * 104'729) %
                                runtime_.vocab());
}

// Computes prompt and decode step of all subjects, in the same steps as long as they last; the
// steps take `chunks` rows of each subject in turn.
void Prober::run(std::vector<Subject*> subjects, std::span<const uint32_t> chunks) {
    std::vector<uint32_t> done(subjects.size(), 0);
    const auto is_unfinished = [&] {
        for (size_t s = 0; s < subjects.size(); ++s) {
            if (done[s] <= subjects[s]->tokens) return true;
        }
        return false;
    };
    for (size_t i = 0; is_unfinished(); ++i) {
        const uint32_t each_max = rows_max() / static_cast<uint32_t>(subjects.size());
        step(subjects, done, std::min(chunks[i % chunks.size()], each_max));
    }
}

uint32_t Prober::rows_max() const {
    return std::min(plan_.rows_max(), kStepRowsMax);
}

void Prober::step(std::vector<Subject*>& subjects, std::vector<uint32_t>& done, uint32_t chunk) {
    const uint32_t stride = plan_.pages_per_sequence();
    std::vector<uint32_t> tables(subjects.size() * stride, 0);
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions;
    std::vector<uint32_t> sequences;
    std::vector<uint32_t> gather;
    std::vector<std::vector<float>*> targets;
    for (uint32_t s = 0; s < subjects.size(); ++s) {
        Subject& subject = *subjects[s];
        for (uint32_t i = 0; i < std::min(pages_each_, stride); ++i) {
            tables[s * stride + i] = subject.first_page + i;
        }
        // The prompt's end and the decode step are rows of their own steps.
        const uint32_t left =
            done[s] < subject.tokens ? subject.tokens - done[s] : subject.tokens + 1 - done[s];
        const uint32_t rows = std::min(left, chunk);
        for (uint32_t i = 0; i < rows; ++i) {
            const uint32_t position = done[s]++;
            tokens.push_back(token(subject.seed, position));
            positions.push_back(position);
            sequences.push_back(s);
            if (position + 1 < subject.tokens) continue;
            gather.push_back(static_cast<uint32_t>(tokens.size()) - 1);
            targets.push_back(position < subject.tokens ? &subject.after_prompt
                                                        : &subject.after_decode);
        }
    }
    RowView rows;
    rows.rows = static_cast<uint32_t>(tokens.size());
    rows.tokens = tokens.data();
    rows.positions = positions.data();
    rows.sequences = sequences.data();
    rows.page_tables = tables.data();
    rows.page_table_stride = stride;
    rows.gather = gather.data();
    rows.gather_rows = static_cast<uint32_t>(gather.size());
    runtime_.step(rows);
    on_step_();
    for (uint32_t i = 0; i < targets.size(); ++i) {
        const float* logits = runtime_.logits(i);
        targets[i]->assign(logits, logits + runtime_.vocab());
    }
}

void Prober::compare(const Subject& subject,
                     const Subject& reference,
                     const std::string& how,
                     std::vector<Reason>& reasons) {
    const auto differ = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0;
    };
    const auto report = [&](const std::string& where) {
        reasons.push_back({"probe.differs",
                           "a prompt of " + std::to_string(subject.tokens) + " tokens " + how +
                               " has other logits " + where + " than alone"});
    };
    if (differ(subject.after_prompt, reference.after_prompt)) report("at its end");
    if (differ(subject.after_decode, reference.after_decode)) report("one token further");
}

}  // namespace strata
