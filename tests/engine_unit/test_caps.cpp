// CAPS of negotiations of any size: reasons come once, and the whole fits the limit that it is
// given without losing the first and the plainest configuration.
#include <string>
#include <utility>

#include "engine/loop/caps.h"
#include "tests/engine_unit/check.h"

using namespace strata;

namespace {

size_t bytes_of(const protocol::Caps& caps) {
    protocol::Buffer out;
    encode(caps, out);
    return out.size();
}

// `count` configurations with batches of count to 1; those whose batch `runs` divides can run.
// Each of the others lacks `reasons` kernels of its own and one that all lack.
Negotiation make_negotiation(size_t count, size_t reasons, size_t runs) {
    Negotiation out;
    for (size_t i = 0; i < count; ++i) {
        Configuration configuration;
        configuration.plan.batch = static_cast<uint32_t>(count - i);
        configuration.plan.kv_tokens = kPageTokens;
        configuration.memory = {{"kv", i, "keys and values"}};
        configuration.shortfalls = {{"threads", {"host.cores", "this process may use 2 cores"}}};
        const std::string name = std::to_string(i);
        for (size_t r = 0; r < reasons && configuration.plan.batch % runs != 0; ++r) {
            configuration.missing.push_back(
                {"kernel.missing", "kernel " + std::to_string(r) + " of " + name});
        }
        if (!configuration.missing.empty()) {
            configuration.missing.push_back({"kernel.missing", "what all lack"});
        }
        out.configurations.push_back(std::move(configuration));
    }
    out.plainest = count - 1;
    out.best = 0;
    return out;
}

void check_references(const protocol::Caps& caps) {
    for (const protocol::Configuration& configuration : caps.configurations) {
        for (const uint32_t index : configuration.missing) CHECK(index < caps.reasons.size());
        for (const protocol::Shortfall& shortfall : configuration.shortfalls) {
            CHECK(shortfall.reason < caps.reasons.size());
        }
    }
    for (size_t i = 0; i < caps.reasons.size(); ++i) {
        for (size_t j = 0; j < i; ++j) CHECK(caps.reasons[i].text != caps.reasons[j].text);
    }
}

TEST(everything_is_kept_where_it_fits) {
    protocol::Caps caps;
    add_configurations(caps, make_negotiation(16, 3, 4), kCapsBytesMax);
    CHECK(caps.configurations.size() == 16);
    for (uint32_t i = 0; i < 16; ++i) CHECK(caps.configurations[i].plan.batch == 16 - i);
    CHECK(caps.reasons.size() == 12 * 3 + 2, caps.reasons.size());
    check_references(caps);
}

TEST(what_cannot_run_goes_first_and_the_farthest_of_it) {
    const Negotiation negotiation = make_negotiation(60, 20, 3);
    protocol::Caps all;
    add_configurations(all, negotiation, kCapsBytesMax);
    CHECK(all.configurations.size() == 60);
    const size_t limit = bytes_of(all) / 2;
    protocol::Caps caps;
    add_configurations(caps, negotiation, limit);
    CHECK(bytes_of(caps) <= limit, bytes_of(caps), limit);
    check_references(caps);
    size_t running = 0;
    uint32_t farthest = 60;  // of those that cannot run, the plainest aside
    for (const protocol::Configuration& configuration : caps.configurations) {
        running += configuration.missing.empty() ? 1 : 0;
        if (!configuration.missing.empty() && configuration.plan.batch > 1) {
            farthest = configuration.plan.batch;
        }
    }
    CHECK(running == 20, running);  // all that can run are there
    CHECK(farthest > 2);
    size_t nearer = 0;
    for (const protocol::Configuration& configuration : caps.configurations) {
        nearer += configuration.plan.batch >= farthest ? 1 : 0;
    }
    CHECK(nearer == 60 - farthest + 1, nearer, farthest);  // and nothing nearer is left out
    CHECK(caps.configurations.size() < 60);
}

TEST(the_first_and_the_plainest_stay_in_any_limit) {
    const Negotiation negotiation = make_negotiation(30, 5000, 7);
    constexpr size_t kLimit = 64 * 1024;
    protocol::Caps caps;
    add_configurations(caps, negotiation, kLimit);
    CHECK(bytes_of(caps) <= kLimit, bytes_of(caps));
    check_references(caps);
    CHECK(caps.configurations.front().plan.batch == 30);
    CHECK(caps.configurations.back().plan.batch == 1);
    for (const protocol::Configuration* configuration :
         {&caps.configurations.front(), &caps.configurations.back()}) {
        CHECK(configuration->missing.size() > 100);
        const protocol::Reason& last = caps.reasons[configuration->missing.back()];
        CHECK(last.code == "caps.shortened");
        CHECK(last.text.find(" more reasons") != std::string::npos, last.text);
    }
}

TEST(a_list_is_cut_only_where_it_is_too_long) {
    const std::vector<Reason> reasons(10, {"a.b", std::string(100, 'x')});
    CHECK(bounded(reasons, 10'000).size() == 10);
    const std::vector<Reason> cut = bounded(reasons, 500);
    CHECK(cut.size() < 6);
    CHECK(cut.back().text ==
          "and " + std::to_string(11 - cut.size()) + " more reasons than this report can hold");
}

}  // namespace

CHECK_MAIN
