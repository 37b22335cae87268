#include "engine/base/beacon.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace strata {

namespace {

static_assert(sizeof(BeaconPage) <= kBeaconPageBytes);

template <class T>
void store(T& field, T value) {
    __atomic_store_n(&field, value, __ATOMIC_RELAXED);
}

// Seen by others before every later store. An exchange, since the thread sanitizer of GCC knows no
// fences.
void store_before(uint64_t& field, uint64_t value) {
    __atomic_exchange_n(&field, value, __ATOMIC_ACQ_REL);
}

template <size_t N>
void store_text(char (&field)[N], std::string_view text) {
    const size_t length = std::min(text.size(), N - 1);
    for (size_t i = 0; i < N; ++i) store(field[i], i < length ? text[i] : '\0');
}

BeaconPage* map_page(int fd) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* memory = mmap(nullptr, kBeaconPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<BeaconPage*>(memory);
}

}  // namespace

uint64_t monotonic_ns() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Beacon::Beacon() : page_(map_page(-1)) {
    if (!page_) throw std::bad_alloc();
    begin_page();
}

Beacon::~Beacon() {
    munmap(page_, kBeaconPageBytes);
}

std::optional<std::string> Beacon::attach(int fd) {
    const auto fail = [fd](const std::string& why) {
        close(fd);
        return "no beacon: its file " + why;
    };
    struct stat facts = {};
    if (fstat(fd, &facts) != 0) return fail(std::string("cannot be read: ") + strerror(errno));
    if (facts.st_size != kBeaconPageBytes) {
        return fail("has " + std::to_string(facts.st_size) + " bytes; it must have " +
                    std::to_string(kBeaconPageBytes));
    }
    BeaconPage* shared = map_page(fd);
    if (!shared) return fail(std::string("cannot be mapped: ") + strerror(errno));
    close(fd);
    munmap(page_, kBeaconPageBytes);
    page_ = shared;
    begin_page();
    return std::nullopt;
}

// What another engine left in the file goes; the magic comes when the rest is there.
void Beacon::begin_page() {
    store(page_->magic, uint64_t{0});
    std::memset(static_cast<void*>(page_), 0, sizeof(BeaconPage));
    page_->version = kBeaconVersion;
    page_->page_bytes = kBeaconPageBytes;
    page_->pid = static_cast<uint32_t>(getpid());
    page_->exit_status = -1;
    launch_none();
    move();
    __atomic_store_n(&page_->magic, kBeaconMagic, __ATOMIC_RELEASE);
}

void Beacon::set_build(std::string_view build) {
    store_text(page_->build, build);
}

void Beacon::set_kernels(std::span<const std::string_view> ids) {
    const size_t count = std::min<size_t>(ids.size(), kBeaconKernelsMax);
    store(page_->kernel_count, 0u);
    for (size_t i = 0; i < count; ++i) {
        char id[kBeaconKernelIdBytes] = {};
        ids[i].copy(id, sizeof(id) - 1);
        std::memcpy(page_->kernels + i * sizeof(id), id, sizeof(id));
    }
    __atomic_store_n(&page_->kernel_count, static_cast<uint32_t>(count), __ATOMIC_RELEASE);
    move();
}

void Beacon::begin_write() {
    store_before(page_->sequence, page_->sequence + 1);
}

void Beacon::end_write() {
    __atomic_store_n(&page_->sequence, page_->sequence + 1, __ATOMIC_RELEASE);
    move();
}

void Beacon::set_phase(BeaconPhase phase) {
    begin_write();
    store(page_->phase, static_cast<uint32_t>(phase));
    end_write();
}

void Beacon::set_mode(std::string_view mode) {
    begin_write();
    store_text(page_->mode, mode);
    end_write();
}

void Beacon::set_plan(std::string_view plan) {
    begin_write();
    store_text(page_->plan, plan);
    end_write();
}

void Beacon::begin_step(uint64_t step, BeaconPhase phase, std::span<const uint64_t> rids) {
    begin_write();
    store(page_->step, step);
    store(page_->phase, static_cast<uint32_t>(phase));
    store(page_->rid_count, static_cast<uint32_t>(rids.size()));
    const size_t kept = std::min<size_t>(rids.size(), kBeaconRidsMax);
    for (size_t i = 0; i < kept; ++i) store(page_->rids[i], rids[i]);
    end_write();
    step_begin_ns_ = page_->moved_ns;
}

void Beacon::set_rows(uint32_t rows, uint32_t sequences) {
    begin_write();
    store(page_->rows, rows);
    store(page_->sequences, sequences);
    end_write();
}

void Beacon::end_step() {
    launch_none();
    move();
    BeaconStep& entry = page_->steps[page_->step % kBeaconStepsKept];
    store_before(entry.step, uint64_t{0});  // a reader meanwhile takes it for empty
    store(entry.begin_ns, step_begin_ns_);
    store(entry.duration_us, static_cast<uint32_t>((page_->moved_ns - step_begin_ns_) / 1000));
    store(entry.rows, page_->rows);
    store(entry.sequences, page_->sequences);
    store(entry.phase, page_->phase);
    __atomic_store_n(&entry.step, page_->step, __ATOMIC_RELEASE);
}

void Beacon::idle(BeaconPhase phase) {
    begin_write();
    store(page_->phase, static_cast<uint32_t>(phase));
    store(page_->rid_count, 0u);
    end_write();
}

void Beacon::set_rss(uint64_t bytes) {
    store(page_->rss_bytes, bytes);
}

void Beacon::move() {
    store(page_->moved_ns, monotonic_ns());
}

}  // namespace strata
