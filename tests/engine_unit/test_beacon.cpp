// The beacon as another process sees its file, and what a step's worth of it costs.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "engine/base/beacon.h"
#include "engine/base/cpu_features.h"
#include "engine/cpu/kernels.h"
#include "engine/loop/beacon_observer.h"

namespace strata::testing {

namespace {

// A file of `bytes` and a second mapping of it.
struct SharedFile {
    explicit SharedFile(off_t bytes) {
        char path[] = "/tmp/strata-beacon-XXXXXX";
        fd = mkstemp(path);
        CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
        unlink(path);
        const auto size = static_cast<size_t>(bytes);
        page = static_cast<const BeaconPage*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0));
        CHECK(page != MAP_FAILED);
    }
    int fd = -1;
    const BeaconPage* page = nullptr;
};

}  // namespace

TEST(a_file_shows_what_is_written) {
    const SharedFile file(kBeaconPageBytes);
    Beacon beacon;
    CHECK(!beacon.attach(file.fd));
    const BeaconPage& page = *file.page;
    CHECK(page.magic == kBeaconMagic && page.version == kBeaconVersion);
    CHECK(page.pid == static_cast<uint32_t>(getpid()));
    const uint64_t moved_ns = page.moved_ns;
    const uint64_t rids[] = {4, 9};
    beacon.begin_step(17, BeaconPhase::Decode, rids);
    beacon.set_rows(5, 2);
    beacon.launch(Beacon::position(3, 20, -1));
    CHECK(page.step == 17 && page.rows == 5 && page.sequences == 2);
    CHECK(page.rid_count == 2 && page.rids[0] == 4 && page.rids[1] == 9);
    CHECK(page.phase == static_cast<uint32_t>(BeaconPhase::Decode));
    CHECK(page.position == (3u | 20u << 16));
    CHECK(page.sequence % 2 == 0 && page.moved_ns > moved_ns);
    beacon.end_step();
    CHECK(page.position == kBeaconNone);
    const BeaconStep& step = page.steps[17];
    CHECK(step.step == 17 && step.rows == 5 && step.sequences == 2);
    CHECK(step.begin_ns + uint64_t{step.duration_us} * 1000 <= page.moved_ns);
    beacon.idle(BeaconPhase::Drain);
    CHECK(page.rid_count == 0 && page.phase == static_cast<uint32_t>(BeaconPhase::Drain));
}

TEST(text_and_requests_are_cut_to_their_room) {
    Beacon beacon;
    beacon.set_mode(std::string(1000, 'm'));
    beacon.set_plan(std::string(1000, 'p'));
    const BeaconPage& page = beacon.page();
    CHECK(std::strlen(page.mode) == sizeof(page.mode) - 1);
    CHECK(std::strlen(page.plan) == sizeof(page.plan) - 1);
    const std::vector<uint64_t> rids(200, 6);
    beacon.begin_step(1, BeaconPhase::Prefill, rids);
    CHECK(page.rid_count == 200 && page.rids[kBeaconRidsMax - 1] == 6);
    CHECK(page.exit_state == 0 && page.exit_status == -1);
}

TEST(a_file_of_another_size_leaves_the_private_page) {
    const SharedFile file(4096);
    Beacon beacon;
    const std::optional<std::string> problem = beacon.attach(file.fd);
    CHECK(problem && problem->find("4096") != std::string::npos);
    beacon.set_phase(BeaconPhase::Probe);
    CHECK(beacon.page().phase == static_cast<uint32_t>(BeaconPhase::Probe));
}

// A decode step of a small model (30 layers, 14 operations each) takes some milliseconds; a
// thousandth of that is the limit. The bound here is wide, for loaded machines and sanitizers.
TEST(a_step_costs_microseconds) {
    Beacon beacon;
    const Registry registry(cpu_kernels(detect_cpu()));
    BeaconObserver observer(beacon, registry);
    constexpr int kLayers = 30;
    constexpr int kOps = 14;
    constexpr int kSteps = 1000;
    std::vector<OpRequest> requests(kLayers);
    for (int layer = 0; layer < kLayers; ++layer) requests[layer].layer = layer;
    const uint32_t sequence = 0;
    RowView rows;
    rows.rows = 1;
    rows.sequences = &sequence;
    const uint64_t rid = 1;
    const auto begin = std::chrono::steady_clock::now();
    StepObserver& seen = observer;
    for (uint64_t step = 1; step <= kSteps; ++step) {
        beacon.begin_step(step, BeaconPhase::Decode, {&rid, 1});
        seen.on_step(rows);
        for (uint32_t op = 0; op < kLayers * kOps; ++op) {
            seen.on_op(op, registry.entries()[op % 7], requests[op / kOps]);
        }
        seen.on_step_end();
        beacon.end_step();
    }
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    std::printf("       %.2f us a step of %d operations\n", spent.count() / kSteps, kLayers * kOps);
    CHECK(spent.count() / kSteps < 1000, spent.count());
}

}  // namespace strata::testing

CHECK_MAIN
