#include "engine/backend/candidates.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "engine/plan/limits.h"

namespace strata {

namespace {

struct AxisName {
    std::string_view name;
    std::string_view plainest;  // never hidden by the bare name
};
constexpr std::array<AxisName, 6> kAxes = {{{"batch", "1"},
                                            {"prefill", "1"},
                                            {"kv", "f32"},
                                            {"activations", "f32"},
                                            {"prefix_cache", "off"},
                                            {"mtp", "off"}}};

const AxisName* find_axis(std::string_view name) {
    const auto* found = std::find_if(
        kAxes.begin(), kAxes.end(), [&](const AxisName& axis) { return axis.name == name; });
    return found == kAxes.end() ? nullptr : found;
}

bool parse_number(std::string_view text, uint64_t& value) {
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

[[noreturn]] void throw_config(const char* axis, const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, std::string("config.") + axis, text);
}

void check_number(const char* axis, uint64_t value, uint64_t max) {
    if (value > max) {
        throw_config(axis,
                     std::string(axis) + " is " + std::to_string(value) + "; allowed are 1 to " +
                         std::to_string(max));
    }
}

// value, value/2, ..., 1
std::vector<uint32_t> halvings(uint32_t value) {
    std::vector<uint32_t> values;
    for (; value > 1; value /= 2) {
        values.push_back(value);
    }
    values.push_back(1);
    return values;
}

std::vector<DType> with_plain(DType wanted) {
    return wanted == DType::F32 ? std::vector<DType>{DType::F32}
                                : std::vector<DType>{wanted, DType::F32};
}

template <class Value, class NameFn>
void remove_hidden(std::vector<Value>& values,
                   const Quarantine& quarantine,
                   const char* axis,
                   NameFn name) {
    values.erase(std::remove_if(values.begin(),
                                values.end(),
                                [&](Value value) { return quarantine.hides(axis, name(value)); }),
                 values.end());
}

}  // namespace

Quarantine::Quarantine(const std::vector<std::string>& entries) {
    for (const std::string& text : entries) {
        const size_t equals = text.find('=');
        Entry entry{text.substr(0, equals),
                    equals == std::string::npos ? "" : text.substr(equals + 1)};
        if (find_axis(entry.axis) == nullptr ||
            (equals != std::string::npos && entry.value.empty())) {
            std::string axes;
            for (const AxisName& axis : kAxes) {
                axes += (axes.empty() ? "" : ", ") + std::string(axis.name);
            }
            throw_config("quarantine",
                         "quarantine entry \"" + text +
                             "\" is neither AXIS nor AXIS=VALUE with an axis of " + axes);
        }
        entries_.push_back(std::move(entry));
    }
}

bool Quarantine::hides(const std::string& axis, const std::string& value) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        if (entry.axis != axis) {
            return false;
        }
        if (entry.value.empty()) {
            return value != find_axis(axis)->plainest;
        }
        uint64_t hidden = 0;
        uint64_t number = 0;
        if (parse_number(entry.value, hidden) && parse_number(value, number)) {
            return number >= hidden;
        }
        return entry.value == value;
    });
}

Reason Quarantine::reason(const std::string& what) const {
    std::string list;
    for (const Entry& entry : entries_) {
        list += (list.empty() ? "" : ", ") + entry.axis +
                (entry.value.empty() ? "" : "=" + entry.value);
    }
    return {"mode.quarantined", what + " is in quarantine (" + list + ")"};
}

void validate_wanted(const WantedModes& want) {
    check_number("batch", want.batch, kBatchMax);
    check_number("prefill", want.prefill, kPrefillMax);
    check_number("threads", want.threads, kThreadsMax);
    check_number("kv_tokens", want.kv_tokens, kKvTokensMax);
    wanted_candidate(want);
}

Candidate wanted_candidate(const WantedModes& want) {
    const WantedModes defaults;
    Candidate candidate;
    candidate.batch = want.batch == 0 ? defaults.batch : want.batch;
    candidate.prefill = want.prefill == 0 ? defaults.prefill : want.prefill;
    candidate.kv = want.kv == "auto" ? DType::F16 : parse_kv(want.kv);
    candidate.activations =
        want.activations == "auto" ? DType::I8Block : parse_activations(want.activations);
    return candidate;
}

std::vector<Candidate> list_candidates(const WantedModes& want, const Quarantine& quarantine) {
    const Candidate wanted = wanted_candidate(want);
    const auto number = [](uint32_t value) { return std::to_string(value); };
    std::vector<uint32_t> batches = halvings(wanted.batch);
    std::vector<uint32_t> prefills = halvings(wanted.prefill);
    std::vector<DType> kvs = with_plain(wanted.kv);
    std::vector<DType> activations = with_plain(wanted.activations);
    remove_hidden(batches, quarantine, "batch", number);
    remove_hidden(prefills, quarantine, "prefill", number);
    remove_hidden(kvs, quarantine, "kv", kv_name);
    remove_hidden(activations, quarantine, "activations", activations_name);

    struct Ranked {
        size_t axes;
        size_t loss;
        Candidate candidate;
    };
    std::vector<Ranked> ranked;
    for (size_t b = 0; b < batches.size(); ++b) {
        for (size_t p = 0; p < prefills.size(); ++p) {
            for (size_t k = 0; k < kvs.size(); ++k) {
                for (size_t a = 0; a < activations.size(); ++a) {
                    const size_t axes = (b > 0) + (p > 0) + (k > 0) + (a > 0);
                    // Steps on the cheaper axes never outweigh one on a dearer axis, and no two
                    // candidates lose the same.
                    const size_t loss = k + 2 * a + 4 * b + 4 * 16 * p;
                    ranked.push_back(
                        {axes, loss, {batches[b], prefills[p], kvs[k], activations[a]}});
                }
            }
        }
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& x, const Ranked& y) {
        return std::pair(x.axes, x.loss) < std::pair(y.axes, y.loss);
    });
    std::vector<Candidate> candidates;
    candidates.reserve(ranked.size());
    for (const Ranked& entry : ranked) {
        candidates.push_back(entry.candidate);
    }
    return candidates;
}

std::string kv_name(DType kv) {
    return std::string(dtype_name(kv));
}

std::string activations_name(DType activations) {
    return activations == DType::I8Block ? "int8" : std::string(dtype_name(activations));
}

DType parse_kv(const std::string& name) {
    for (const DType type : {DType::F16, DType::F32}) {
        if (name == kv_name(type)) {
            return type;
        }
    }
    throw_config("kv", "kv is \"" + name + "\"; allowed are auto, f16 and f32");
}

DType parse_activations(const std::string& name) {
    for (const DType type : {DType::I8Block, DType::F32}) {
        if (name == activations_name(type)) {
            return type;
        }
    }
    throw_config("activations", "activations is \"" + name + "\"; allowed are auto, int8 and f32");
}

}  // namespace strata
