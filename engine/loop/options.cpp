#include "engine/loop/options.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>

#include "engine/base/error.h"

namespace strata {

namespace {

struct Flag {
    const char* name;
    const char* value;  // placeholder, null where the flag takes none
    const char* help;
    std::function<void(Options&, const std::string&)> set;
};

[[noreturn]] void fail(const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, "config.flag", text);
}

template <class T>
T number(const char* flag, const std::string& text) {
    T value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size()) {
        fail(std::string(flag) + " is \"" + text + "\"; it takes a whole number from 0 to " +
             std::to_string(std::numeric_limits<T>::max()));
    }
    return value;
}

double probability(const char* flag, const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value >= 0 && value <= 1)) {
        fail(std::string(flag) + " is \"" + text + "\"; it takes a number from 0 to 1");
    }
    return value;
}

const std::vector<Flag>& flags() {
    static const std::vector<Flag> all = {
        {"--ipc",
         "COMMAND_FD,EVENT_FD[,BEACON_FD]",
         "serve over two inherited pipe descriptors; map the third as the beacon",
         [](Options& o, const std::string& v) { o.ipc = v; }},
        {"--plan",
         "MODEL",
         "print what could run with this file, as JSON; loads no weights",
         [](Options& o, const std::string& v) { o.plan = v; }},
        {"--ple",
         "FILE",
         "with --plan: the file of its per-layer embedding table, where that is one of its own",
         [](Options& o, const std::string& v) { o.ple = v; }},
        {"--describe",
         nullptr,
         "print build, device, kernels and what they serve as JSON",
         [](Options& o, const std::string&) { o.describe = true; }},
        {"--describe-all",
         nullptr,
         "print the kernels of every backend as JSON, the same on every machine",
         [](Options& o, const std::string&) { o.describe_all = true; }},
        {"--as",
         "BACKEND",
         "plan or describe for cpu, cuda or metal on a machine that is not here",
         [](Options& o, const std::string& v) { o.as_backend = v; }},
        {"--assume",
         "FACT=VALUE,...",
         "with --as: device, device_memory, host_memory, cores of that machine",
         [](Options& o, const std::string& v) { o.assumed = parse_assumed(v); }},
        {"--version",
         nullptr,
         "print the version",
         [](Options& o, const std::string&) { o.version = true; }},
        {"--help", nullptr, "print this", [](Options& o, const std::string&) { o.help = true; }},
        {"--isa",
         "NAME",
         "highest instruction set: auto, avx512vnni, avx2, neon, portable",
         [](Options& o, const std::string& v) { o.isa = v; }},
        {"--without-kernel",
         "GLOB[:CONDITION]",
         "behave as if matching kernels were not built; repeatable",
         [](Options& o, const std::string& v) { o.without_kernels.push_back(v); }},
        {"--fixed-drafts",
         nullptr,
         "always as many drafts as the plan has, whether they pay or not (tests, measurements)",
         [](Options& o, const std::string&) { o.fixed_drafts = true; }},
        {"--batch",
         "N",
         "with --plan: sequences that may share a step",
         [](Options& o, const std::string& v) { o.want.batch = number<uint32_t>("--batch", v); }},
        {"--max-context",
         "N",
         "with --plan: tokens a sequence may reach, 0 = the model's own",
         [](Options& o, const std::string& v) {
             o.want.max_context = number<uint32_t>("--max-context", v);
         }},
        {"--kv",
         "TYPE",
         "with --plan: auto, f32, f16, bf16, int8, q4_0",
         [](Options& o, const std::string& v) { o.want.kv = v; }},
        {"--prefill",
         "N",
         "with --plan: prompt rows of a step",
         [](Options& o, const std::string& v) {
             o.want.prefill = number<uint32_t>("--prefill", v);
         }},
        {"--activations",
         "TYPE",
         "with --plan: auto, int8, f32",
         [](Options& o, const std::string& v) { o.want.activations = v; }},
        {"--threads",
         "N",
         "with --plan: compute threads, 0 = one per usable core",
         [](Options& o, const std::string& v) {
             o.want.threads = number<uint32_t>("--threads", v);
         }},
        {"--kv-tokens",
         "N",
         "with --plan: size of the KV pool, 0 = from batch and context",
         [](Options& o, const std::string& v) {
             o.want.kv_tokens = number<uint64_t>("--kv-tokens", v);
         }},
        {"--no-prefix-cache",
         nullptr,
         "with --plan: do not reuse prompt beginnings",
         [](Options& o, const std::string&) { o.want.prefix_cache = false; }},
        {"--mtp",
         "FILE",
         "with --plan: auto = the model's own draft layers, off, or a drafter's file",
         [](Options& o, const std::string& v) { o.want.mtp = v; }},
        {"--mtp-hidden-norm",
         "FORM",
         "with --plan: auto, stream, whole: how a drafter of residual streams norms them",
         [](Options& o, const std::string& v) { o.want.mtp_hidden_norm = v; }},
        {"--spec",
         "N",
         "with --plan: drafts a sequence may verify per step, 0 = auto",
         [](Options& o, const std::string& v) { o.want.spec = number<uint32_t>("--spec", v); }},
        {"--spec-min-p",
         "P",
         "with --plan: a draft less probable than this ends drafting, 0 to 1",
         [](Options& o, const std::string& v) {
             o.want.spec_min_p = probability("--spec-min-p", v);
         }},
        {"--batch-mtp",
         "WHEN",
         "with --plan: auto, on, off: drafts while sequences share a step",
         [](Options& o, const std::string& v) { o.want.batch_mtp = v; }},
        {"--device",
         "NAME",
         "with --plan: auto, or a device's name or index",
         [](Options& o, const std::string& v) { o.want.device = v; }},
        {"--device-memory",
         "BYTES",
         "with --plan: bytes of it that may be used, 0 = what is free",
         [](Options& o, const std::string& v) {
             o.want.device_memory = number<uint64_t>("--device-memory", v);
         }},
        {"--no-mmap",
         nullptr,
         "with --plan: weights do not stay in the mapped file",
         [](Options& o, const std::string&) { o.want.mmap = false; }},
        {"--mlock",
         nullptr,
         "with --plan: keep the weights from being paged out",
         [](Options& o, const std::string&) { o.want.mlock = true; }},
        {"--expert-cache",
         "N",
         "with --plan: auto, off, or experts kept in device memory",
         [](Options& o, const std::string& v) { o.want.expert_cache = v; }},
        {"--kv-resident",
         "N",
         "with --plan: tokens of KV kept in device memory, 0 = all",
         [](Options& o, const std::string& v) {
             o.want.kv_resident = number<uint64_t>("--kv-resident", v);
         }},
    };
    return all;
}

const Flag& find_flag(const std::string& name) {
    for (const Flag& flag : flags()) {
        if (name == flag.name) return flag;
    }
    fail("unknown flag \"" + name + "\"; --help lists the flags");
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const size_t equals = arguments[i].find('=');
        const bool is_joined = arguments[i].starts_with("--") && equals != std::string::npos;
        const Flag& flag =
            find_flag(arguments[i].substr(0, is_joined ? equals : std::string::npos));
        if (!flag.value) {
            if (is_joined) fail(std::string(flag.name) + " takes no value");
            flag.set(options, "");
        } else if (is_joined) {
            flag.set(options, arguments[i].substr(equals + 1));
        } else if (++i < arguments.size()) {
            flag.set(options, arguments[i]);
        } else {
            fail(std::string(flag.name) + " needs a value: " + flag.value);
        }
    }
    if (options.as_backend.empty() && !options.assumed.is_empty())
        fail("--assume goes with --as BACKEND: facts of this machine are read, not assumed");
    return options;
}

std::string help_text(const std::string& program) {
    std::string out =
        "usage: " + program +
        " --ipc COMMAND_FD,EVENT_FD[,BEACON_FD] | --plan MODEL | --describe | --describe-all\n";
    for (const Flag& flag : flags()) {
        std::string left = "  " + std::string(flag.name) + (flag.value ? " " : "") +
                           (flag.value ? flag.value : "");
        left.resize(std::max<size_t>(left.size() + 2, 36), ' ');
        out += left + flag.help + "\n";
    }
    return out;
}

}  // namespace strata
