#include "engine/faults/fault.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/crash_handler.h"

namespace strata::faults {

namespace {

struct NamedAction {
    std::string_view name;
    Action action;
};
constexpr NamedAction kActions[] = {{"segv", Action::Segv},
                                    {"abort", Action::Abort},
                                    {"assert", Action::Assert},
                                    {"terminate", Action::Terminate},
                                    {"ill", Action::Ill},
                                    {"exit1", Action::Exit1},
                                    {"loop", Action::Loop},
                                    {"stop", Action::Stop},
                                    {"nan", Action::Nan},
                                    {"throw", Action::Throw},
                                    {"oom", Action::Oom}};
constexpr std::string_view kNumbers[] = {"step", "rows", "sequences", "layer", "token"};
constexpr std::string_view kNames[] = {"phase", "mode"};
constexpr std::string_view kPlanPrefix = "plan.";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
    throw Error(ErrorKind::InvalidRequest,
                "config.fault",
                "STRATA_FAULT '" + std::string(text) + "': " + why);
}

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool compare(int64_t a, const std::string& op, int64_t b) {
    if (op == "=") return a == b;
    if (op == "!=") return a != b;
    if (op == "<") return a < b;
    if (op == "<=") return a <= b;
    return op == ">" ? a > b : a >= b;
}

Condition parse_condition(std::string_view fault, std::string_view text) {
    Condition condition;
    if (text.starts_with(kPlanPrefix)) {
        condition.field = kPlanPrefix;
        const std::string mask = "*:" + std::string(text.substr(kPlanPrefix.size()));
        condition.request.push_back(KernelMask::parse(mask));
        return condition;
    }
    const size_t name_end = std::min(text.find_first_of("=!<>"), text.size());
    const size_t value_at = std::min(text.find_first_not_of("=!<>", name_end), text.size());
    condition.field = text.substr(0, name_end);
    condition.op = text.substr(name_end, value_at - name_end);
    condition.text = text.substr(value_at);
    const std::string_view ops[] = {"=", "!=", "<", "<=", ">", ">="};
    if (!is_one_of(ops, condition.op) || condition.text.empty()) {
        refuse(fault, "condition '" + std::string(text) + "' is not FIELD OPERATOR VALUE");
    }
    if (is_one_of(kNames, condition.field)) {
        if (condition.op != "=") refuse(fault, "'" + condition.field + "' takes = only");
        if (condition.field == "phase" && !is_one_of(kBeaconPhaseNames, condition.text)) {
            refuse(fault, "no phase is named '" + condition.text + "'");
        }
        return condition;
    }
    if (!is_one_of(kNumbers, condition.field)) {
        refuse(fault,
               "no condition is named '" + condition.field +
                   "'; there are step, rows, sequences, layer, token, phase, mode, plan.FIELD");
    }
    const char* end = condition.text.data() + condition.text.size();
    const auto parsed = std::from_chars(condition.text.data(), end, condition.number);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
        refuse(fault, "'" + condition.text + "' is not a whole number");
    }
    return condition;
}

Fault parse_fault(std::string_view text) {
    const size_t at = text.rfind('@');
    if (at == std::string_view::npos) refuse(text, "has no @ACTION");
    const std::string_view name = text.substr(at + 1);
    const auto* named = std::find_if(
        std::begin(kActions), std::end(kActions), [&](const auto& a) { return a.name == name; });
    if (named == std::end(kActions)) {
        refuse(text,
               "no action is named '" + std::string(name) +
                   "'; there are segv, abort, assert, terminate, ill, exit1, loop, stop, nan, "
                   "throw, oom");
    }
    const std::string_view where = text.substr(0, at);
    const size_t colon = std::min(where.find(':'), where.size());
    Fault fault{std::string(text), KernelMask::parse(where.substr(0, colon)), {}, named->action};
    std::string_view conditions = where.substr(std::min(colon + 1, where.size()));
    while (!conditions.empty()) {
        const size_t comma = std::min(conditions.find(','), conditions.size());
        fault.conditions.push_back(parse_condition(text, conditions.substr(0, comma)));
        conditions.remove_prefix(std::min(comma + 1, conditions.size()));
    }
    return fault;
}

bool holds(const Condition& condition, const OpCall& call, const BeaconPage& now) {
    if (!condition.request.empty()) return condition.request.front().hides("x", *call.request);
    if (condition.field == "phase") {
        return now.phase < std::size(kBeaconPhaseNames) &&
               condition.text == kBeaconPhaseNames[now.phase];
    }
    if (condition.field == "mode") {
        const std::string_view mode(now.mode);  // a size may follow: "max_context=4096"
        return condition.text == mode || condition.text == mode.substr(0, mode.find('='));
    }
    if (condition.field == "token") {
        const int32_t* end = call.row.tokens + call.row.rows;
        const auto is_wanted = [&](int32_t id) {
            return compare(id, condition.op, condition.number);
        };
        return std::any_of(call.row.tokens, end, is_wanted);
    }
    int64_t value = call.request->layer;
    if (condition.field == "step") value = static_cast<int64_t>(now.step);
    if (condition.field == "rows") value = now.rows;
    if (condition.field == "sequences") value = now.sequences;
    return compare(value, condition.op, condition.number);
}

[[noreturn]] void read_what_is_not_there() {
    void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static_cast<volatile int*>(page)[0] = 1;
    std::abort();  // never: the page cannot be written
}

[[noreturn]] void run_what_is_no_instruction() {
#if defined(__x86_64__)
    __asm__ volatile("ud2");
#elif defined(__aarch64__)
    __asm__ volatile(".inst 0");
#endif
    std::abort();
}

}  // namespace

bool Fault::is_met(const OpCall& call) const {
    const BeaconPage* now = armed_page();
    if (!now) return false;
    return std::all_of(conditions.begin(), conditions.end(), [&](const Condition& condition) {
        return holds(condition, call, *now);
    });
}

std::vector<Fault> parse_faults(std::string_view text) {
    std::vector<Fault> faults;
    while (!text.empty()) {
        const size_t end = std::min(text.find(';'), text.size());
        faults.push_back(parse_fault(text.substr(0, end)));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return faults;
}

void happen_within(Action action) {
    switch (action) {
        case Action::Segv:
            read_what_is_not_there();
        case Action::Abort:
            std::abort();
        case Action::Assert:
            assert_failed(__FILE__, __LINE__, "false", "a fault was asked for");
        case Action::Terminate:
            throw std::runtime_error("a kernel threw");  // nothing catches within a kernel
        case Action::Ill:
            run_what_is_no_instruction();
        case Action::Exit1:
            std::exit(1);
        case Action::Loop:
            for (volatile bool is_endless = true; is_endless;) {
            }
            return;
        case Action::Stop:
            raise(SIGSTOP);
            return;
        case Action::Nan:
        case Action::Throw:
        case Action::Oom:
            return;
    }
}

void poison(const OpCall& call) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    if (call.out) call.out[0] = kNan;
    if (!call.out && call.quant.scales) call.quant.scales[0] = kNan;
}

void happen_at_launch(Action action, const OpCall& call) {
    if (action == Action::Throw) {
        throw Error(ErrorKind::DeviceLost,
                    "device.lost",
                    "the device was lost in " + describe(*call.request));
    }
    if (action == Action::Oom) throw std::bad_alloc();
}

}  // namespace strata::faults
