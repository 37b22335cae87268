#include "engine/backend/registry.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/plan/op_fields.h"

namespace strata {
namespace {

// fnmatch semantics without locale: '*' any run, '?' any one, '[abc]', '[a-z]', '[!..]'.
// Reads the class behind '['; returns whether `c` is in it and moves `pattern` behind ']'.
// An unclosed '[' is an ordinary character, as in POSIX.
std::optional<bool> match_class(std::string_view& pattern, char c) {
    size_t at = 1;
    const bool is_negated = at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^');
    if (is_negated) ++at;
    bool is_member = false;
    for (bool is_first = true; at < pattern.size(); is_first = false) {
        if (pattern[at] == ']' && !is_first) {
            pattern.remove_prefix(at + 1);
            return is_member != is_negated;
        }
        const char low = pattern[at];
        const bool is_range =
            at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']';
        const char high = is_range ? pattern[at + 2] : low;
        is_member = is_member || (low <= c && c <= high);
        at += is_range ? 3 : 1;
    }
    return std::nullopt;
}

bool glob_matches(std::string_view pattern, std::string_view text) {
    std::string_view star_pattern;  // where to go on after a mismatch behind the last '*'
    std::string_view star_text;
    bool has_star = false;
    while (true) {
        bool is_match = false;
        if (!pattern.empty() && pattern[0] == '*') {
            pattern.remove_prefix(1);
            star_pattern = pattern;
            star_text = text;
            has_star = true;
            continue;
        }
        if (text.empty()) {
            if (pattern.empty()) return true;
        } else if (!pattern.empty()) {
            std::string_view rest = pattern.substr(1);
            is_match = pattern[0] == '?' || pattern[0] == text[0];
            if (pattern[0] == '[') {
                std::string_view behind = pattern;
                const std::optional<bool> in_class = match_class(behind, text[0]);
                if (in_class) {
                    is_match = *in_class;
                    rest = behind;
                }
            }
            if (is_match) {
                pattern = rest;
                text.remove_prefix(1);
                continue;
            }
        }
        if (!has_star || star_text.empty()) return false;
        star_text.remove_prefix(1);
        text = star_text;
        pattern = star_pattern;
    }
}

[[noreturn]] void refuse_mask(std::string_view text, const std::string& why) {
    throw Error(ErrorKind::InvalidRequest,
                "config.without_kernel",
                "--without-kernel '" + std::string(text) + "': " + why);
}

using Compare = bool (*)(int64_t, int64_t);

struct Operator {
    std::string_view text;
    Compare compare;
};
// Longer operators first, so that "<=" is not read as "<".
constexpr Operator kOperators[] = {
    {"!=", [](int64_t a, int64_t b) { return a != b; }},
    {"<=", [](int64_t a, int64_t b) { return a <= b; }},
    {">=", [](int64_t a, int64_t b) { return a >= b; }},
    {"=", [](int64_t a, int64_t b) { return a == b; }},
    {"<", [](int64_t a, int64_t b) { return a < b; }},
    {">", [](int64_t a, int64_t b) { return a > b; }},
};

std::function<bool(const OpRequest&)> parse_condition(std::string_view text,
                                                      std::string_view condition) {
    const size_t name_end = condition.find_first_of("=!<>");
    if (name_end == std::string_view::npos) {
        refuse_mask(text,
                    "condition '" + std::string(condition) +
                        "' has no operator; write FIELD OPERATOR VALUE with = != < <= > or >=");
    }
    const std::string_view name = condition.substr(0, name_end);
    const std::string_view behind = condition.substr(name_end);
    const Operator* found = nullptr;
    for (const Operator& candidate : kOperators) {
        if (behind.substr(0, candidate.text.size()) == candidate.text) {
            found = &candidate;
            break;
        }
    }
    const std::string_view value = found ? behind.substr(found->text.size()) : behind;
    if (!found || value.empty() || value.find_first_of("=!<>") != std::string_view::npos) {
        refuse_mask(text,
                    "cannot read '" + std::string(behind) +
                        "' as an operator and a value; operators are = != < <= > and >=");
    }
    const Compare compare = found->compare;
    for (const OpTypeField& field : kOpTypeFields) {
        if (field.name != name) continue;
        if (found->text != "=" && found->text != "!=") {
            refuse_mask(text,
                        "'" + std::string(name) + "' is a type and takes = and != only, not '" +
                            std::string(found->text) + "'");
        }
        const std::optional<DType> type =
            find_dtype_named(value != "int8"                  ? value
                             : field.member == &OpRequest::kv ? "q8_0"
                                                              : "i8block");
        if (!type) refuse_mask(text, "no type is named '" + std::string(value) + "'");
        return [member = field.member, compare, type = *type](const OpRequest& request) {
            return compare(static_cast<int64_t>(request.*member), static_cast<int64_t>(type));
        };
    }
    for (const OpCountField& field : kOpCountFields) {
        if (field.name != name) continue;
        uint32_t number = 0;
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc() || end != value.data() + value.size()) {
            refuse_mask(text,
                        "'" + std::string(value) + "' is no whole number from 0 to 4294967295");
        }
        return [member = field.member, compare, number](const OpRequest& request) {
            return compare(request.*member, number);
        };
    }
    std::string known;
    for (const OpTypeField& field : kOpTypeFields) known.append(field.name).append(", ");
    for (const OpCountField& field : kOpCountFields) known.append(field.name).append(", ");
    known.resize(known.size() - 2);
    refuse_mask(text, "no field is named '" + std::string(name) + "'; fields are " + known);
}

std::optional<Reason> why_not(const KernelEntry& entry,
                              const OpRequest& request,
                              const std::vector<KernelMask>& masks) {
    const std::string id(entry.id);
    const uint32_t missing = request.features & ~entry.features;
    if (missing != 0) {
        const uint32_t lowest = missing & ~(missing - 1);
        return Reason{"kernel.feature",
                      id + ": does not handle feature " + std::string(feature_name(lowest))};
    }
    if (const std::optional<std::string> text = entry.match(request))
        return Reason{"kernel.refused", id + ": " + *text};
    for (const KernelMask& mask : masks) {
        if (mask.hides(entry.id, request))
            return Reason{"kernel.masked",
                          id + ": hidden by --without-kernel '" + mask.text() + "'"};
    }
    return std::nullopt;
}

}  // namespace

KernelMask KernelMask::parse(std::string_view text) {
    KernelMask mask;
    mask.text_ = std::string(text);
    const size_t colon = text.find(':');
    mask.glob_ = std::string(text.substr(0, colon));
    if (mask.glob_.empty())
        refuse_mask(text,
                    "no kernel pattern; write GLOB or GLOB:CONDITION, as in 'matmul*:rows>=8'");
    if (colon != std::string_view::npos)
        mask.condition_ = parse_condition(text, text.substr(colon + 1));
    return mask;
}

bool KernelMask::names(std::string_view kernel_id) const {
    return glob_matches(glob_, kernel_id);
}

bool KernelMask::hides(std::string_view kernel_id, const OpRequest& request) const {
    return names(kernel_id) && (!condition_ || condition_(request));
}

Registry::Registry(std::vector<KernelEntry> entries, std::vector<KernelMask> masks)
    : entries_(std::move(entries)), masks_(std::move(masks)) {}

std::vector<KernelMask> Registry::idle_masks() const {
    std::vector<KernelMask> idle;
    std::copy_if(masks_.begin(), masks_.end(), std::back_inserter(idle), [&](const auto& mask) {
        return std::none_of(entries_.begin(), entries_.end(), [&](const KernelEntry& entry) {
            return mask.names(entry.id);
        });
    });
    return idle;
}

std::variant<const KernelEntry*, Refusal> Registry::find(const OpRequest& request) const {
    Refusal refusal;
    for (const KernelEntry& entry : entries_) {
        if (entry.kind != request.kind) continue;
        std::optional<Reason> reason = why_not(entry, request, masks_);
        if (!reason) return &entry;
        refusal.reasons.push_back(std::move(*reason));
    }
    if (refusal.reasons.empty()) {
        refusal.reasons.push_back(
            {"kernel.missing",
             "no kernel for " + std::string(op_name(request.kind)) + " in this backend"});
    }
    return refusal;
}

}  // namespace strata
