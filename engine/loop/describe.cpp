#include "engine/loop/describe.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/backend/survey.h"
#include "engine/loop/json.h"
#include "engine/plan/limits.h"
#include "engine/plan/type_words.h"
#include "protocol/cpp/msgpack.h"

namespace strata {
namespace {

using protocol::Writer;

void put(Writer& out, std::string_view key, std::string_view text) {
    out.str(key);
    out.str(text);
}

void put(Writer& out, std::string_view key, uint64_t number) {
    out.str(key);
    out.unsigned_int(number);
}

void put(Writer& out, std::string_view key, const std::vector<std::string>& texts) {
    out.str(key);
    out.array(texts.size());
    for (const std::string& text : texts) out.str(text);
}

std::vector<std::string> feature_names(uint32_t features) {
    std::vector<std::string> names;
    for (uint32_t bits = features; bits != 0; bits &= bits - 1)
        names.emplace_back(feature_name(bits & ~(bits - 1)));
    return names;
}

std::string_view determinism_name(Determinism determinism) {
    return determinism == Determinism::RowInvariant ? "row_invariant" : "run_invariant";
}

void put_kernels(Writer& out, const Registry& registry) {
    out.str("kernels");
    out.array(registry.entries().size());
    for (const KernelEntry& entry : registry.entries()) {
        out.map(5);
        put(out, "id", entry.id);
        put(out, "op", op_name(entry.kind));
        put(out, "isa", entry.isa);
        put(out, "features", feature_names(entry.features));
        put(out, "determinism", determinism_name(entry.determinism));
    }
}

// The answers of one request, one for each step shape.
using Answers = const SurveyAnswer*;

bool is_served(Answers answers) {
    return std::any_of(answers, answers + std::size(kStepShapes), [](const SurveyAnswer& answer) {
        return answer.kernel != nullptr;
    });
}

void put_op(Writer& out, Answers answers) {
    const OpRequest& request = answers->request;
    out.map(5 + std::size(kStepShapes) + 1);
    put(out, "op", op_name(request.kind));
    for (const auto& [name, type] :
         {std::pair{"weight", request.weight}, std::pair{"act", request.act}}) {
        put(out, name, type == DType::None ? "" : dtype_name(type));
    }
    put(out, "kv", request.kv == DType::None ? "" : kv_word(request.kv));
    put(out, "features", feature_names(request.features));
    std::vector<std::string> reasons;
    for (size_t i = 0; i < std::size(kStepShapes); ++i) {
        put(out, step_shape_name(answers[i].shape), answers[i].kernel ? answers[i].kernel->id : "");
        for (const Reason& reason : answers[i].reasons) {
            if (std::find(reasons.begin(), reasons.end(), reason.text) == reasons.end())
                reasons.push_back(reason.text);
        }
    }
    put(out, "reasons", reasons);
}

// Requests that some kernel serves; where only some step shapes are, with the reasons.
void put_ops(Writer& out, const std::vector<SurveyAnswer>& answers) {
    std::vector<Answers> served;
    for (size_t i = 0; i < answers.size(); i += std::size(kStepShapes)) {
        if (is_served(&answers[i])) served.push_back(&answers[i]);
    }
    out.str("ops");
    out.array(served.size());
    for (const Answers op : served) put_op(out, op);
}

// A value of an axis, and the requests that it needs and that no kernel serves.
struct AxisValue {
    std::string value;
    std::vector<std::string> missing;
};

template <class Concerns>
std::vector<std::string> missing_of(const std::vector<SurveyAnswer>& answers,
                                    const Concerns& concerns) {
    std::vector<std::string> missing;
    for (const SurveyAnswer& answer : answers) {
        if (!answer.kernel && concerns(answer)) missing.push_back(describe_types(answer.request));
    }
    return missing;
}

// What is missing for steps of one shape: operations that no kernel serves at all, and requests
// that are served in steps of one row only.
std::vector<std::string> missing_of_shape(const std::vector<SurveyAnswer>& answers,
                                          StepShape shape) {
    std::vector<std::string> missing;
    for (const OpKind op : surveyed_ops()) {
        bool is_served = false;
        bool is_fused = false;
        for (const SurveyAnswer& answer : answers) {
            if (answer.request.kind != op) continue;
            is_served = is_served || answer.kernel;
            is_fused = answer.is_fused;
        }
        if (!is_served && !is_fused) missing.emplace_back(op_name(op));
    }
    for (size_t i = 0; i < answers.size(); i += std::size(kStepShapes)) {
        const SurveyAnswer& answer = answers[i + static_cast<size_t>(shape)];
        if (answers[i].kernel && !answer.kernel) missing.push_back(describe_types(answer.request));
    }
    return missing;
}

std::vector<AxisValue> kv_values(const std::vector<SurveyAnswer>& answers) {
    std::vector<AxisValue> values;
    for (const TypeWord& kv : kKvWords) {
        values.push_back(
            {std::string(kv.word), missing_of(answers, [&](const SurveyAnswer& answer) {
                 return answer.shape == StepShape::OneRow && answer.request.kv == kv.type;
             })});
    }
    return values;
}

std::vector<AxisValue> activation_values(const std::vector<SurveyAnswer>& answers) {
    std::vector<AxisValue> values;
    for (const TypeWord& act : kActivationWords) {
        AxisValue value{std::string(act.word), {}};
        const auto serves_matmul = [&](const SurveyAnswer& answer) {
            return answer.kernel && answer.request.kind == OpKind::Matmul &&
                   answer.request.act == act.type;
        };
        if (!std::any_of(answers.begin(), answers.end(), serves_matmul))
            value.missing.push_back("matmul act=" + std::string(dtype_name(act.type)));
        if (act.type == DType::I8Block) {
            for (std::string& text : missing_of(answers, [](const SurveyAnswer& answer) {
                     return answer.shape == StepShape::OneRow &&
                            answer.request.kind == OpKind::Quantize;
                 }))
                value.missing.push_back(std::move(text));
        }
        values.push_back(std::move(value));
    }
    return values;
}

void put_axis(Writer& out, std::string_view name, const std::vector<AxisValue>& values) {
    out.map(2);
    put(out, "name", name);
    out.str("values");
    out.array(values.size());
    for (const AxisValue& value : values) {
        out.map(2);
        put(out, "value", value.value);
        put(out, "missing", value.missing);
    }
}

// The axes on which kernels decide. Sizes, memory and the model's own needs are answered by plans.
void put_modes(Writer& out, const std::vector<SurveyAnswer>& answers) {
    const std::string above_one = "2 and more";
    out.str("modes");
    out.array(4);
    put_axis(out, "batch", {{above_one, missing_of_shape(answers, StepShape::ManySequences)}});
    put_axis(out, "prefill", {{above_one, missing_of_shape(answers, StepShape::ManyRows)}});
    put_axis(out, "kv", kv_values(answers));
    put_axis(out, "activations", activation_values(answers));
}

void put_limits(Writer& out) {
    out.str("limits");
    out.map(6);
    put(out, "batch", uint64_t{kBatchMax});
    put(out, "prefill", uint64_t{kPrefillMax});
    put(out, "threads", uint64_t{kThreadsMax});
    put(out, "kv_tokens", uint64_t{kKvTokensMax});
    put(out, "spec", uint64_t{kSpecMax});
    put(out, "page_tokens", uint64_t{kPageTokens});
}

// Names of all operations and types that were asked for.
void put_asked(Writer& out) {
    std::vector<std::string> names;
    for (const OpKind op : surveyed_ops()) names.emplace_back(op_name(op));
    put(out, "asked_ops", names);
    names.clear();
    for (const DType type : surveyed_types()) names.emplace_back(dtype_name(type));
    put(out, "asked_types", names);
}

void put_survey(Writer& out, const Registry& registry) {
    const std::vector<SurveyAnswer> answers = survey(registry);
    put_kernels(out, registry);
    put_ops(out, answers);
    put_modes(out, answers);
}

}  // namespace

std::string describe(const Backend& backend, const Registry& registry, const std::string& build) {
    protocol::Buffer bytes;
    Writer out(bytes);
    const HostFacts& host = backend.host();
    out.map(13);
    put(out, "build", build);
    put(out, "backend", backend.name());
    put(out, "device", backend.device());
    put(out, "isa", host.isa);
    put(out, "os", host.os);
    put(out, "cores", uint64_t{host.cores});
    out.str("memory");
    out.map(2);
    put(out, "total_bytes", host.memory_total_bytes);
    put(out, "available_bytes", host.memory_available_bytes);
    put_limits(out);
    put_asked(out);
    put_survey(out, registry);
    return to_json(bytes);
}

std::string describe_all(const std::vector<KernelTable>& tables,
                         const std::vector<std::string>& without_kernels) {
    protocol::Buffer bytes;
    Writer out(bytes);
    out.map(4);
    put_limits(out);
    put_asked(out);
    out.str("tables");
    out.array(tables.size());
    for (const KernelTable& table : tables) {
        std::vector<KernelMask> masks;
        for (const std::string& text : without_kernels) masks.push_back(KernelMask::parse(text));
        const Registry registry(table.entries, std::move(masks));
        out.map(5);
        put(out, "backend", table.backend);
        put(out, "isa", table.isa);
        put_survey(out, registry);
    }
    return to_json(bytes);
}

}  // namespace strata
