#include "engine/loop/program.h"

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <vector>

#include "engine/base/beacon.h"
#include "engine/base/crash_handler.h"
#include "engine/base/error.h"
#include "engine/loop/boot.h"
#include "engine/loop/build_id.h"
#include "engine/loop/caps.h"
#include "engine/loop/describe.h"
#include "engine/loop/exit_code.h"
#include "engine/loop/foreign_backend.h"
#include "engine/loop/json.h"
#include "engine/loop/options.h"
#include "engine/loop/process.h"

namespace strata {

namespace {

using protocol::ExitCode;

ExitCode print_plan(const Backend& backend, const Options& options) {
    const Registry registry = make_registry(backend, options.without_kernels);
    const Model model = Model::open(options.plan, options.ple);
    const CapsAnswer answer = make_caps(backend, model, options.want, registry, {});
    protocol::Buffer bytes;
    encode(answer.caps, bytes);
    std::puts(to_json(bytes).c_str());
    return answer.refusal.empty() ? ExitCode::Ok : ExitCode::ConfigRefused;
}

// Never returns: the other threads may be anywhere when the loop is done.
[[noreturn]] void serve_pipes(const char* program, Backend& backend, const Options& options) {
    die_with_parent();
    const Pipes pipes = take_pipes(options.ipc);
    // Never deleted: handlers of signals and of exit() write it until the very end.
    static Beacon& beacon = *new Beacon();
    if (pipes.beacon_fd >= 0) {
        if (const std::optional<std::string> problem = beacon.attach(pipes.beacon_fd)) {
            std::fprintf(stderr, "%s: %s\n", program, problem->c_str());
        }
    }
    beacon.set_build(build_id());
    arm_crash_handler(beacon.page());
    Inbox inbox;
    Vitals vitals;
    route_signals(inbox);
    Channel channel(pipes.command_fd, pipes.event_fd, inbox, vitals);
    const BootOptions boot{build_id(), options.without_kernels, options.fixed_drafts};
    try {
        channel.leave(serve(backend, boot, channel, inbox, vitals, beacon));
    } catch (const Error& error) {
        beacon.set_phase(BeaconPhase::Dying);
        std::fprintf(stderr, "%s: %s: %s\n", program, error.code().c_str(), error.what());
        give_up(channel, error);
    } catch (const std::bad_alloc&) {
        beacon.set_phase(BeaconPhase::Dying);
        give_up(channel, Error(ErrorKind::OutOfMemory, "mem.host", "memory ran out"));
    } catch (const std::exception& error) {
        beacon.set_phase(BeaconPhase::Dying);
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        give_up(channel, Error(ErrorKind::Internal, "internal", error.what()));
    }
}

ExitCode run(const char* program, const MakeBackend& make_backend, const Options& options) {
    if (options.help) {
        std::fputs(help_text(program).c_str(), stdout);
        return ExitCode::Ok;
    }
    if (options.version) {
        std::printf("%s %s\n", program, build_id().c_str());
        return ExitCode::Ok;
    }
    if (options.describe_all) {
        std::puts(describe_all(kernel_tables(), options.without_kernels).c_str());
        return ExitCode::Ok;
    }
    std::unique_ptr<Backend> backend;
    if (options.as_backend.empty()) {
        backend = make_backend(options.isa);
    } else {
        backend =
            std::make_unique<ForeignBackend>(options.as_backend, options.isa, options.assumed);
    }
    if (options.describe) {
        const Registry registry = make_registry(*backend, options.without_kernels);
        std::puts(describe(*backend, registry, build_id()).c_str());
        return ExitCode::Ok;
    }
    if (!options.plan.empty()) return print_plan(*backend, options);
    if (!options.ipc.empty()) serve_pipes(program, *backend, options);
    throw Error(ErrorKind::InvalidRequest,
                "config.flag",
                "nothing to do; --help lists the flags (the supervisor starts this with --ipc)");
}

}  // namespace

int run_program(const char* program, const MakeBackend& make_backend, int count, char** values) {
    try {
        const std::vector<std::string> arguments(values + 1, values + count);
        return static_cast<int>(run(program, make_backend, parse_options(arguments)));
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        return static_cast<int>(boot_exit_code(error));
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: memory ran out\n", program);
        return static_cast<int>(ExitCode::OutOfMemory);
    }
}

}  // namespace strata
