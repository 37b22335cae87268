#include "engine/loop/boot.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "engine/loop/beacon_observer.h"
#include "engine/loop/caps.h"
#include "engine/loop/convert.h"
#include "engine/loop/draft_probe.h"
#include "engine/loop/engine_loop.h"
#include "engine/loop/exit_code.h"
#include "engine/loop/pace.h"
#include "engine/loop/probe.h"

namespace strata {

namespace {

using Clock = std::chrono::steady_clock;
using protocol::ExitCode;

constexpr size_t kDyingTextBytes = 2048;  // fits the smallest control limit (4096)
constexpr auto kProgressEvery = std::chrono::milliseconds(250);  // at least each second is the rule

double ms_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// The next message, which the peer has checked to be the one that the phase allows; nullopt when a
// drain was asked for meanwhile.
template <class T>
std::optional<T> await(Inbox& inbox) {
    std::vector<protocol::ToEngineMessage> messages;
    while (messages.empty()) {
        inbox.wait(std::nullopt);
        if (inbox.take(messages)) return std::nullopt;
    }
    return std::get<T>(std::move(messages.front()));
}

void leave_if_drained(Channel& channel, Inbox& inbox) {
    if (inbox.is_drain_requested()) channel.leave(ExitCode::Ok);
}

// The phases that LoadProgress names.
BeaconPhase beacon_phase(std::string_view phase) {
    if (phase == "map") return BeaconPhase::Map;
    return phase == "allocate" ? BeaconPhase::Allocate : BeaconPhase::Pack;
}

Loaded load(Backend& backend,
            const Model& model,
            const ModePlan& plan,
            const Registry& registry,
            Channel& channel,
            Inbox& inbox,
            Beacon& beacon) {
    Pace pace(kProgressEvery);
    std::string last_phase;
    return backend.load(
        model, plan, registry, [&](std::string_view phase, uint64_t done, uint64_t total) {
            leave_if_drained(channel, inbox);
            beacon.set_phase(beacon_phase(phase));
            const bool is_news = phase != last_phase || done == total;
            if (is_news) {
                pace.restart(Clock::now());
            } else if (!pace.is_due(Clock::now())) {
                return;
            }
            last_phase = phase;
            channel.send(protocol::Progress{last_phase, done, total, "bytes"});
        });
}

// Runs all probes and takes out of `plan` what failed. Returns the reasons why nothing can run.
std::vector<Reason> prove(
    Runtime& runtime, ModePlan& plan, Channel& channel, Inbox& inbox, Beacon& beacon) {
    // Counted in probes: how many steps there will be depends on what each finds.
    size_t proven = 0;
    size_t total = 0;
    Pace pace(kProgressEvery);
    const auto report = [&] {
        leave_if_drained(channel, inbox);
        if (!pace.is_due(Clock::now())) return;
        channel.send(protocol::Progress{"warm", proven, total, "probes"});
    };
    // With its size, so that an end of the engine there tells which contexts are proven.
    const auto on_context = [&](uint32_t context) {
        beacon.set_mode("max_context=" + std::to_string(context));
    };
    Prober prober(runtime, plan, report, on_context);
    DraftProber draft_prober(runtime, plan, report);
    struct Run {
        const char* mode;
        std::function<ProbeResult()> probe;
    };
    // A mode that the plan does not have is not tried: it may be what ended the engine before.
    std::vector<Run> runs = {{"solo", [&] { return prober.solo(); }}};
    if (plan.prefill > 1) runs.push_back({"prefill", [&] { return prober.prefill(); }});
    runs.push_back({"max_context", [&] { return prober.max_context(); }});
    if (plan.batch > 1) runs.push_back({"batch", [&] { return prober.batch(); }});
    if (plan.spec > 0) runs.push_back({"mtp", [&] { return draft_prober.mtp(); }});
    if (plan.batch_mtp) runs.push_back({"batch_mtp", [&] { return draft_prober.batch_mtp(); }});
    total = runs.size();
    beacon.set_phase(BeaconPhase::Probe);
    for (; proven < total; ++proven) {
        report();
        // What a mode before took out of the plan is not tried either.
        if (runs[proven].mode == std::string_view("batch_mtp") && !plan.batch_mtp) continue;
        beacon.set_mode(runs[proven].mode);
        const Clock::time_point begin = Clock::now();
        ProbeResult result = runs[proven].probe();
        channel.send(protocol::Probe{result.mode, result.is_ok(), ms_since(begin), result.reasons});
        if (result.is_ok()) continue;
        if (result.mode == "batch") {
            plan.batch = 1;
            plan.batch_mtp = false;
        } else if (result.mode == "mtp") {
            plan.mtp = "off";
            plan.spec = 0;
            plan.spec_min_p = 0;
            plan.batch_mtp = false;
        } else if (result.mode == "batch_mtp") {
            plan.batch_mtp = false;
        } else if (result.mode == "prefill") {
            plan.prefill = 1;
        } else if (result.mode == "max_context") {
            plan.max_context = prober.proven_context();
        } else {
            return result.reasons;
        }
    }
    beacon.set_mode("");
    return {};
}

ExitCode refuse(Channel& channel, std::vector<Reason> reasons, ExitCode code) {
    channel.send(protocol::Refuse{std::move(reasons), static_cast<uint8_t>(code)});
    return code;
}

}  // namespace

Registry make_registry(const Backend& backend, const std::vector<std::string>& without_kernels) {
    std::vector<KernelMask> masks;
    masks.reserve(without_kernels.size());
    for (const std::string& text : without_kernels) masks.push_back(KernelMask::parse(text));
    Registry registry(backend.kernels(), std::move(masks));
    for (const Reason& note : idle_mask_notes(registry, backend.name())) {
        std::fprintf(stderr, "%s\n", note.text.c_str());
    }
    return registry;
}

ExitCode serve(Backend& backend,
               const BootOptions& options,
               Channel& channel,
               Inbox& inbox,
               Vitals& vitals,
               Beacon& beacon) {
    beacon.set_phase(BeaconPhase::Handshake);
    channel.send(protocol::Hello{protocol::kProtoMin,
                                 protocol::kProtoMax,
                                 options.build,
                                 backend.name(),
                                 backend.device(),
                                 static_cast<uint32_t>(getpid())});
    const std::optional<protocol::Offer> offer = await<protocol::Offer>(inbox);
    if (!offer) return ExitCode::Ok;
    std::vector<std::string> masks = options.without_kernels;
    masks.insert(masks.end(), offer->without_kernels.begin(), offer->without_kernels.end());
    const Registry registry = make_registry(backend, masks);
    const Model model = Model::open(offer->model, offer->ple);
    CapsAnswer answer =
        make_caps(backend, model, from_wire(offer->want), registry, offer->quarantine);
    channel.send(answer.caps);  // also where nothing can run: what it would need is worth knowing
    if (!answer.refusal.empty()) {
        return refuse(channel, std::move(answer.refusal), ExitCode::ConfigRefused);
    }

    const std::optional<protocol::Plan> chosen = await<protocol::Plan>(inbox);
    if (!chosen) return ExitCode::Ok;
    ModePlan plan = from_wire(chosen->plan);
    std::vector<Reason> in_the_way = answer.in_the_way_of(plan);
    if (!in_the_way.empty()) return refuse(channel, std::move(in_the_way), ExitCode::ConfigRefused);
    beacon.set_plan(summary(plan));
    const Clock::time_point load_begin = Clock::now();
    const Loaded loaded = load(backend, model, plan, registry, channel, inbox, beacon);
    const double load_ms = ms_since(load_begin);
    if (loaded.unlocked) {
        plan.mlock = false;
        channel.send(protocol::Probe{"mlock", false, load_ms, {*loaded.unlocked}});
    }
    BeaconObserver observer(beacon, registry);
    loaded.runtime->observe(observer);
    const Clock::time_point warm_begin = Clock::now();
    std::vector<Reason> reasons = prove(*loaded.runtime, plan, channel, inbox, beacon);
    if (!reasons.empty()) return refuse(channel, std::move(reasons), ExitCode::ModelBad);
    const protocol::Limits limits = channel.offered_limits();
    // The loop stands before READY is sent: what comes next finds it.
    beacon.set_plan(summary(plan));
    EngineLoop loop(
        channel, inbox, vitals, beacon, *loaded.runtime, plan, limits, options.fixed_drafts);
    channel.send(protocol::Ready{to_wire(plan),
                                 load_ms,
                                 ms_since(warm_begin),
                                 plan.pages(),
                                 kPageTokens,
                                 to_wire(loaded.memory),
                                 limits,
                                 to_wire(serving_modes(plan))});
    return loop.run();
}

void give_up(Channel& channel, const Error& error) {
    const ExitCode code = boot_exit_code(error);
    if (protocol::is_retryable(code) || !channel.is_booting()) {
        const std::string text = std::string(error.what()).substr(0, kDyingTextBytes);
        channel.send(protocol::Dying{error.kind(), error.code(), text});
    } else {
        channel.send(protocol::Refuse{{{error.code(), error.what()}}, static_cast<uint8_t>(code)});
    }
    channel.leave(code);
}

}  // namespace strata
