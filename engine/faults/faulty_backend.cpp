#include "engine/faults/faulty_backend.h"

#include <array>
#include <utility>

#include "engine/base/beacon_layout.h"

namespace strata::faults {

namespace {

constexpr size_t kSlots = kBeaconKernelsMax;

// What stands behind the function pointers of a wrapped kernel. Filled before threads start.
struct Slot {
    ItemsFn items = nullptr;
    RunFn run = nullptr;
    std::vector<Fault*> faults;
};
std::array<Slot, kSlots> g_slots;

template <size_t I>
uint32_t items(const OpCall& call) {
    for (const Fault* fault : g_slots[I].faults) {
        if (fault->is_met(call)) happen_at_launch(fault->action, call);
    }
    return g_slots[I].items(call);
}

template <size_t I>
void run(const OpCall& call, WorkRange range) {
    bool is_poisoned = false;
    for (Fault* fault : g_slots[I].faults) {
        if (!fault->is_met(call)) continue;
        is_poisoned |= fault->action == Action::Nan;
        if (fault->action == Action::Stop && __atomic_exchange_n(&fault->has_happened, true, 0)) {
            continue;
        }
        happen_within(fault->action);
    }
    g_slots[I].run(call, range);
    // The first value is written by who computes the first item.
    if (is_poisoned && range.begin == 0) poison(call);
}

struct Trampolines {
    std::array<ItemsFn, kSlots> items;
    std::array<RunFn, kSlots> run;
};

template <size_t... I>
constexpr Trampolines make_trampolines(std::index_sequence<I...>) {
    return {{&items<I>...}, {&run<I>...}};
}
constexpr Trampolines kTrampolines = make_trampolines(std::make_index_sequence<kSlots>());

}  // namespace

FaultyBackend::FaultyBackend(std::unique_ptr<Backend> inner, std::vector<Fault> faults)
    : inner_(std::move(inner)), faults_(std::move(faults)), kernels_(inner_->kernels()) {
    std::vector<bool> is_used(faults_.size(), false);
    size_t slot = 0;
    for (KernelEntry& kernel : kernels_) {
        std::vector<Fault*> met;
        for (size_t i = 0; i < faults_.size(); ++i) {
            if (!faults_[i].kernels.hides(kernel.id, OpRequest{})) continue;
            is_used[i] = true;
            met.push_back(&faults_[i]);
        }
        if (met.empty()) continue;
        if (slot == kSlots) {
            throw Error(ErrorKind::InvalidRequest,
                        "config.fault",
                        "STRATA_FAULT names more than " + std::to_string(kSlots) + " kernels");
        }
        g_slots[slot] = {kernel.items, kernel.run, std::move(met)};
        kernel.items = kTrampolines.items[slot];
        kernel.run = kTrampolines.run[slot];
        ++slot;
    }
    for (size_t i = 0; i < faults_.size(); ++i) {
        if (is_used[i]) continue;
        throw Error(ErrorKind::InvalidRequest,
                    "config.fault",
                    "STRATA_FAULT '" + faults_[i].text + "' names no kernel of this backend");
    }
}

}  // namespace strata::faults
