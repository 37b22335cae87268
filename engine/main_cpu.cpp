// strata-engine-cpu: parses the command line, puts the CPU backend and the loop together, and is
// the last place that catches: whatever ends the process says why, on stderr and to the supervisor.
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/loop/boot.h"
#include "engine/loop/build_id.h"
#include "engine/loop/convert.h"
#include "engine/loop/cpu_backend.h"
#include "engine/loop/describe.h"
#include "engine/loop/exit_code.h"
#include "engine/loop/foreign_backend.h"
#include "engine/loop/json.h"
#include "engine/loop/options.h"
#include "engine/loop/process.h"

namespace {

using strata::Error;
using strata::ErrorKind;
using strata::protocol::ExitCode;

constexpr const char* kProgram = "strata-engine-cpu";

ExitCode print_plan(const strata::Backend& backend, const strata::Options& options) {
    const strata::Registry registry = make_registry(backend, options.without_kernels);
    const strata::Model model = strata::Model::open(options.plan);
    std::vector<strata::Reason> missing;
    const strata::protocol::Caps caps =
        make_caps(backend, model, options.want, registry, {}, missing);
    strata::protocol::Buffer bytes;
    if (missing.empty()) {
        encode(caps, bytes);
        std::puts(strata::to_json(bytes).c_str());
        return ExitCode::Ok;
    }
    encode(strata::protocol::Refuse{missing, static_cast<uint8_t>(ExitCode::ConfigRefused)}, bytes);
    std::puts(strata::to_json(bytes).c_str());
    return ExitCode::ConfigRefused;
}

// Never returns: the other threads may be anywhere when the loop is done.
[[noreturn]] void serve_pipes(strata::Backend& backend, const strata::Options& options) {
    strata::die_with_parent();
    const strata::Pipes pipes = strata::take_pipes(options.ipc);
    strata::Inbox inbox;
    strata::Vitals vitals;
    strata::route_signals(inbox);
    strata::Channel channel(pipes.command_fd, pipes.event_fd, inbox, vitals);
    const strata::BootOptions boot{strata::build_id(), options.without_kernels};
    try {
        channel.leave(strata::serve(backend, boot, channel, inbox, vitals));
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s: %s\n", kProgram, error.code().c_str(), error.what());
        strata::give_up(channel, error);
    } catch (const std::bad_alloc&) {
        strata::give_up(channel, Error(ErrorKind::OutOfMemory, "mem.host", "memory ran out"));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", kProgram, error.what());
        strata::give_up(channel, Error(ErrorKind::Internal, "internal", error.what()));
    }
}

std::unique_ptr<strata::Backend> make_backend(const strata::Options& options) {
    if (options.as_backend.empty()) return std::make_unique<strata::CpuBackend>(options.isa);
    return std::make_unique<strata::ForeignBackend>(
        options.as_backend, options.isa, options.assumed);
}

ExitCode run(const strata::Options& options) {
    if (options.help) {
        std::fputs(strata::help_text(kProgram).c_str(), stdout);
        return ExitCode::Ok;
    }
    if (options.version) {
        std::printf("%s %s\n", kProgram, strata::build_id().c_str());
        return ExitCode::Ok;
    }
    if (options.describe_all) {
        std::puts(describe_all(strata::kernel_tables(), options.without_kernels).c_str());
        return ExitCode::Ok;
    }
    const std::unique_ptr<strata::Backend> backend = make_backend(options);
    if (options.describe) {
        const strata::Registry registry = make_registry(*backend, options.without_kernels);
        std::puts(describe(*backend, registry, strata::build_id()).c_str());
        return ExitCode::Ok;
    }
    if (!options.plan.empty()) return print_plan(*backend, options);
    if (!options.ipc.empty()) serve_pipes(*backend, options);
    throw Error(ErrorKind::InvalidRequest,
                "config.flag",
                "nothing to do; --help lists the flags (the supervisor starts this with --ipc)");
}

}  // namespace

int main(int count, char** values) {
    try {
        return static_cast<int>(
            run(strata::parse_options(std::vector<std::string>(values + 1, values + count))));
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", kProgram, error.what());
        return static_cast<int>(strata::boot_exit_code(error));
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: memory ran out\n", kProgram);
        return static_cast<int>(ExitCode::OutOfMemory);
    }
}
