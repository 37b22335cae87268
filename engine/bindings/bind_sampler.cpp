// Python view of sampling: parameters and their ranges, state, sampler, and the random numbers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/decode/candidates.h"
#include "engine/decode/exponential.h"
#include "engine/decode/features.h"
#include "engine/decode/philox.h"
#include "engine/decode/sampler.h"

namespace py = pybind11;

namespace {

using strata::Sampled;
using strata::SampleFault;
using strata::Sampler;
using strata::SamplingParams;
using strata::SamplingState;
using strata::Scored;
using strata::TokenLogprob;

using Logits = py::array_t<float, py::array::c_style>;
using Tokens = std::vector<int32_t>;

const char* fault_name(SampleFault fault) {
    switch (fault) {
        case SampleFault::None:
            return "none";
        case SampleFault::NonFinite:
            return "non_finite";
        case SampleFault::NoCandidate:
            return "no_candidate";
    }
    return "none";
}

[[noreturn]] void fail(const std::string& what, const std::string& text) {
    throw strata::Error(strata::ErrorKind::InvalidRequest, "binding." + what, text);
}

void check_logits(const Logits& logits, uint32_t vocab) {
    if (logits.ndim() != 1 || logits.size() != static_cast<py::ssize_t>(vocab))
        fail("logits", "logits must be f32 [" + std::to_string(vocab) + "]");
}

void check_tokens(std::span<const int32_t> tokens, uint32_t vocab) {
    for (const int32_t token : tokens)
        if (token < 0 || static_cast<uint32_t>(token) >= vocab)
            fail("tokens",
                 "token " + std::to_string(token) + " is not below " + std::to_string(vocab));
}

// Fields by name, so that a test says only what it is about. A wrong name is an error.
SamplingParams make_params(const py::kwargs& fields) {
    SamplingParams params;
    const py::dict rest(fields);
    const auto take = [&](const char* name, auto& field) {
        if (rest.contains(name))
            field = rest.attr("pop")(name).template cast<std::decay_t<decltype(field)>>();
    };
    take("max_tokens", params.max_tokens);
    take("min_tokens", params.min_tokens);
    take("temperature", params.temperature);
    take("top_k", params.top_k);
    take("top_p", params.top_p);
    take("min_p", params.min_p);
    take("typical_p", params.typical_p);
    take("repetition_penalty", params.repetition_penalty);
    take("presence_penalty", params.presence_penalty);
    take("frequency_penalty", params.frequency_penalty);
    take("seed", params.seed);
    take("choice", params.choice);
    take("stop_ids", params.stop_ids);
    take("ignore_eos", params.ignore_eos);
    take("logprobs", params.logprobs);
    take("prompt_logprobs", params.prompt_logprobs);
    take("needs", params.needs);
    std::vector<std::pair<int32_t, double>> biases;
    take("logit_bias", biases);
    for (const auto& [token, bias] : biases) params.logit_bias.push_back({token, bias});
    if (!rest.empty()) throw py::key_error(py::str(rest).cast<std::string>());
    return params;
}

void check_params(const SamplingParams& params, uint32_t vocab) {
    if (const auto reason = validate(params, vocab)) fail("params", reason->text);
}

SamplingState make_state(const SamplingParams& params, uint32_t vocab, const Tokens& prompt) {
    check_params(params, vocab);
    check_tokens(prompt, vocab);
    return SamplingState(params, vocab, prompt, params.max_tokens);
}

// A state remembers its vocabulary here only, to check what tests hand in.
struct BoundState {
    uint32_t vocab;
    SamplingState state;
};

py::list top_list(const TokenLogprob& logprob) {
    py::list out;
    for (const auto& entry : logprob.top()) out.append(py::make_tuple(entry.token, entry.logprob));
    return out;
}

py::dict sampled_dict(const Sampled& sampled) {
    py::dict out;
    out["fault"] = fault_name(sampled.fault);
    out["token"] = sampled.token;
    out["logprob"] = sampled.logprob.logprob;
    out["top"] = top_list(sampled.logprob);
    return out;
}

py::dict sample(Sampler& self, const Logits& logits, const BoundState& bound, uint32_t index) {
    check_logits(logits, self.vocab());
    if (bound.vocab != self.vocab()) fail("state", "the state is of another vocabulary");
    return sampled_dict(self.sample(logits.data(), bound.state, index));
}

py::dict score(Sampler& self, const Logits& logits, int32_t token, uint32_t top_count) {
    check_logits(logits, self.vocab());
    check_tokens(std::span(&token, 1), self.vocab());
    const Scored scored = self.score(logits.data(), token, top_count);
    py::dict out;
    out["fault"] = fault_name(scored.fault);
    out["logprob"] = scored.logprob.logprob;
    out["top"] = top_list(scored.logprob);
    return out;
}

// Tokens drawn with the given uniform numbers, straight from the candidates of unadjusted logits.
Tokens draw(const Logits& logits, const SamplingParams& params, const std::vector<double>& us) {
    const auto vocab = static_cast<uint32_t>(logits.size());
    check_logits(logits, vocab);
    strata::Ranking ranking(vocab);
    strata::Candidates candidates(vocab);
    Tokens out;
    for (const double u : us) {
        ranking.begin(logits.data());
        out.push_back(candidates.draw(logits.data(), ranking, params, u));
    }
    return out;
}

Tokens rank(const Logits& logits, size_t count) {
    const auto vocab = static_cast<uint32_t>(logits.size());
    check_logits(logits, vocab);
    strata::Ranking ranking(vocab);
    ranking.begin(logits.data());
    Tokens out;
    for (const strata::RankKey key : ranking.first(count)) out.push_back(strata::rank_token(key));
    return out;
}

py::object validate_params(const SamplingParams& params, uint32_t vocab, uint32_t logprobs_max) {
    const auto reason = validate(params, vocab, logprobs_max);
    if (!reason) return py::none();
    return py::make_tuple(reason->code, reason->text);
}

py::dict asked_features(const SamplingParams& params) {
    py::dict out;
    for (const strata::RequestFeature& feature : strata::decode_features()) {
        const char* field = feature.asked_by(params);
        if (field != nullptr) out[py::str(std::string(feature.name))] = field;
    }
    return out;
}

}  // namespace

void bind_sampler(py::module_& m) {
    using py::arg;
    py::class_<SamplingParams>(m, "SamplingParams").def(py::init(&make_params));
    py::class_<BoundState>(m, "SamplingState")
        .def(py::init([](const SamplingParams& params, uint32_t vocab, const Tokens& prompt) {
                 return BoundState{vocab, make_state(params, vocab, prompt)};
             }),
             arg("params"),
             arg("vocab"),
             arg("prompt") = Tokens{})
        .def(
            "accept",
            [](BoundState& self, int32_t token) {
                check_tokens(std::span(&token, 1), self.vocab);
                if (self.state.generated_count() >= self.state.params().max_tokens)
                    fail("accept", "max_tokens are generated");
                self.state.accept(token);
            },
            arg("token"))
        .def(
            "replay",
            [](BoundState& self, const Tokens& generated) {
                check_tokens(generated, self.vocab);
                if (generated.size() + self.state.generated_count() >
                    self.state.params().max_tokens)
                    fail("replay", "more than max_tokens");
                self.state.replay(generated);
            },
            arg("generated"))
        .def_property_readonly("generated_count",
                               [](const BoundState& self) { return self.state.generated_count(); })
        .def_property_readonly("seen", [](const BoundState& self) {
            py::dict out;
            for (const auto& seen : self.state.seen()) out[py::int_(seen.token)] = seen.generated;
            return out;
        });
    py::class_<Sampler>(m, "Sampler")
        .def(py::init([](uint32_t vocab) {
                 if (vocab == 0) fail("vocab", "vocab must be at least 1");
                 return Sampler(vocab);
             }),
             arg("vocab"))
        .def("sample", &sample, arg("logits"), arg("state"), arg("output_index"))
        .def("score", &score, arg("logits"), arg("token"), arg("top_count"));
    m.def("validate_sampling",
          &validate_params,
          arg("params"),
          arg("vocab"),
          arg("logprobs_max") = strata::kTopLogprobsMax,
          "(code, text) of the first field out of range, or None.");
    m.def("decode_features", [] { return strata::feature_names(strata::decode_features()); });
    m.def("asked_features",
          &asked_features,
          arg("params"),
          "Feature to the field of `params` that asks for it.");
    m.def(
        "missing_feature",
        [](const SamplingParams& params) {
            const auto reason = strata::missing_feature(params, strata::decode_features());
            return reason ? py::object(py::make_tuple(reason->code, reason->text)) : py::none();
        },
        arg("params"),
        "(code, text) of the first need that the engine lacks, or None.");
    m.def("draw_candidates", &draw, arg("logits"), arg("params"), arg("us"));
    m.def("rank_logits", &rank, arg("logits"), arg("count"), "At least `count` ids, best first.");
    m.def("exp_nonpositive", [](double x) { return strata::exp_nonpositive(x); }, arg("x"));
    m.def(
        "philox4x32",
        [](const strata::PhiloxCounter& counter, const strata::PhiloxKey& key) {
            return strata::philox4x32(counter, key);
        },
        arg("counter"),
        arg("key"));
    m.def("philox_uniform", &strata::philox_uniform, arg("seed"), arg("choice"), arg("position"));
    m.attr("TOP_LOGPROBS_MAX") = strata::kTopLogprobsMax;
}
