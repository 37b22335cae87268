// The probes find what they are there to find: each fault makes its own probe fail. And they report
// behind every step, each of few rows.
#include <cmath>
#include <limits>

#include "engine/loop/pace.h"
#include "engine/loop/probe.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/hash_runtime.h"

namespace strata::testing {

namespace {

enum class Fault { None, NotFinite, SecondSequence, ChunkSize, FarPosition };

class FaultyRuntime final : public Runtime {
  public:
    FaultyRuntime(const ModePlan& plan, Fault fault)
        : model_(23, plan.pages(), plan.rows_max(), plan.rows_max()), fault_(fault) {}

    void step(const RowView& rows) override {
        CHECK(rows.rows > 0 && rows.rows <= rows_max());
        CHECK(rows.rows <= Prober::kStepRowsMax, rows.rows);
        CHECK(reports == steps, "the step before was not reported");
        ++steps;
        model_.step(rows);
        for (uint32_t i = 0; i < rows.gather_rows; ++i) {
            const uint32_t row = rows.gather[i];
            float* out = model_.logits(i);
            if (fault_ == Fault::NotFinite) out[3] = std::numeric_limits<float>::infinity();
            if (fault_ == Fault::SecondSequence && rows.sequences[row] > 0) out[3] += 1e-3f;
            // Off by a hair in short chunks only.
            if (fault_ == Fault::ChunkSize && rows.rows > 1 && rows.rows < 8) out[3] += 1e-3f;
            if (fault_ == Fault::FarPosition && rows.positions[row] > 100) out[3] = NAN;
        }
    }
    float* logits(uint32_t index) override { return model_.logits(index); }
    uint32_t vocab() const override { return model_.vocab(); }
    uint32_t rows_max() const override { return model_.rows_max(); }
    uint32_t gather_max() const override { return model_.gather_max(); }

    uint64_t steps = 0;
    uint64_t reports = 0;  // calls of the prober's on_step

  private:
    HashRuntime model_;
    Fault fault_;
};

ModePlan plan_of(uint32_t batch, uint32_t prefill, uint32_t max_context, uint32_t pages) {
    ModePlan plan;
    plan.batch = batch;
    plan.prefill = prefill;
    plan.max_context = max_context;
    plan.kv_tokens = uint64_t{pages} * kPageTokens;
    return plan;
}

struct Results {
    bool solo, prefill, max_context, batch;
};

Results prove(const ModePlan& plan, Fault fault) {
    FaultyRuntime runtime(plan, fault);
    Prober prober(runtime, plan, [&] { ++runtime.reports; });
    return {prober.solo().is_ok(),
            prober.prefill().is_ok(),
            prober.max_context().is_ok(),
            plan.batch < 2 || prober.batch().is_ok()};
}

}  // namespace

TEST(a_sound_runtime_passes_whatever_the_plan) {
    for (const uint32_t batch : {1u, 2u, 8u}) {
        for (const uint32_t prefill : {1u, 2u, 31u, 256u}) {
            for (const uint32_t max_context : {1u, 2u, 32u, 33u, 500u}) {
                for (const uint32_t pages : {1u, 2u, 5u, 6u, 100u}) {
                    if (batch > 1 && pages < 2) continue;
                    const Results r =
                        prove(plan_of(batch, prefill, max_context, pages), Fault::None);
                    CHECK(r.solo && r.prefill && r.max_context && r.batch,
                          batch,
                          prefill,
                          max_context,
                          pages);
                }
            }
        }
    }
}

TEST(each_fault_fails_its_probe) {
    const ModePlan plan = plan_of(4, 64, 500, 64);
    CHECK(!prove(plan, Fault::NotFinite).solo);
    const Results second = prove(plan, Fault::SecondSequence);
    CHECK(second.solo && second.prefill && second.max_context && !second.batch);
    const Results chunk = prove(plan, Fault::ChunkSize);
    CHECK(chunk.solo && !chunk.prefill);
    const Results far = prove(plan, Fault::FarPosition);
    CHECK(far.solo && far.prefill && !far.max_context && far.batch);
}

TEST(one_page_holds_no_batch_and_the_probe_says_so) {
    const ModePlan plan = plan_of(2, 8, 32, 1);
    FaultyRuntime runtime(plan, Fault::None);
    const ProbeResult result = Prober(runtime, plan, [] {}).batch();
    CHECK(!result.is_ok() && result.reasons[0].code == "mem.kv_budget");
}

TEST(every_step_of_every_probe_is_reported) {
    const ModePlan plan = plan_of(4, 256, 500, 64);
    FaultyRuntime runtime(plan, Fault::None);
    Prober prober(runtime, plan, [&] { ++runtime.reports; });
    using Run = ProbeResult (Prober::*)();
    for (const Run run :
         {Run{&Prober::solo}, &Prober::prefill, &Prober::max_context, &Prober::batch}) {
        const uint64_t before = runtime.reports;
        (prober.*run)();
        CHECK(runtime.reports > before && runtime.reports == runtime.steps);
    }
    // 72 prompt tokens in steps of 8 at most, and a decode step, were solo's alone.
    CHECK(runtime.reports > 4 * (72 / Prober::kStepRowsMax), runtime.reports);
}

TEST(what_a_report_throws_ends_the_probe) {
    struct Left {};
    const ModePlan plan = plan_of(1, 64, 500, 64);
    FaultyRuntime runtime(plan, Fault::None);
    Prober prober(runtime, plan, [&] {
        if (++runtime.reports == 3) throw Left{};
    });
    bool has_left = false;
    try {
        prober.solo();
    } catch (const Left&) {
        has_left = true;
    }
    CHECK(has_left && runtime.steps == 3, runtime.steps);
}

TEST(a_pace_lets_through_one_report_per_interval) {
    using std::chrono::milliseconds;
    Pace pace(milliseconds(250));
    const Pace::Time begin{};
    CHECK(pace.is_due(begin) && !pace.is_due(begin + milliseconds(249)));
    CHECK(pace.is_due(begin + milliseconds(250)));
    pace.restart(begin + milliseconds(400));
    CHECK(!pace.is_due(begin + milliseconds(649)) && pace.is_due(begin + milliseconds(650)));
    // Steps of a tenth of a second for ten seconds: never more than a second of silence.
    int reports = 0;
    for (int i = 0; i < 100; ++i) reports += pace.is_due(begin + milliseconds(1000 + 100 * i));
    CHECK(reports >= 10 && reports <= 40, reports);
}

}  // namespace strata::testing

CHECK_MAIN
