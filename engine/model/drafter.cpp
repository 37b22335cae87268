#include "engine/model/drafter.h"

#include <array>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/model/architecture.h"

namespace strata {

namespace {

[[noreturn]] void refuse(ErrorKind kind, const char* code, const std::string& text) {
    throw Error(kind, code, text);
}

// Metadata that says how the draft layer was trained, and the one form that is computed.
using Forms = std::array<std::pair<std::string_view, std::string_view>, 3>;
constexpr Forms kForms = {{
    {"nextn.concat_order", "embedding,hidden"},
    {"nextn.hidden_state", "after output_norm"},
    {"nextn.recycled_state", "after shared_head_norm"},
}};
constexpr Forms kStreamForms = {{
    {"nextn.concat_order", "embedding,hidden"},
    {"nextn.hidden_state", "residual streams"},
    {"nextn.recycled_state", "residual streams"},
}};
constexpr std::string_view kNormKey = "nextn.hidden_norm";

bool has_streams(const Hparams& hparams) {
    return hparams.streams.low_rank > 0;
}

// Of drafters of residual streams: each stream has a norm of its own, or all have one. `wanted` is
// "auto" or the form.
bool reads_whole_norm(const gguf::File& file, const Hparams& hparams, std::string_view wanted) {
    if (!has_streams(hparams)) {
        if (wanted == "auto") return false;
        refuse(ErrorKind::Unsupported,
               "drafter.metadata",
               "mtp_hidden_norm is " + std::string(wanted) +
                   ", and this drafter's hidden state is no residual streams");
    }
    const std::string_view of_file = file.find_string(kNormKey).value_or("stream");
    const std::string_view form = wanted == "auto" ? of_file : wanted;
    if (form != "stream" && form != "whole") {
        refuse(ErrorKind::Unsupported,
               "drafter.metadata",
               "metadata key " + std::string(kNormKey) + " is \"" + printable(form, 64) +
                   "\"; supported are \"stream\" and \"whole\"");
    }
    return form == "whole";
}

void check_form(const gguf::File& file, const Forms& forms) {
    for (const auto& [key, needed] : forms) {
        const std::string_view value = file.find_string(key).value_or(needed);
        if (value != needed) {
            refuse(ErrorKind::Unsupported,
                   "drafter.metadata",
                   "metadata key " + std::string(key) + " is \"" + printable(value, 64) +
                       "\"; supported is \"" + std::string(needed) + "\"");
        }
    }
}

void check_layers(const Hparams& hparams) {
    if (hparams.draft_layers != 1) {
        refuse(ErrorKind::Unsupported,
               "drafter.layers",
               "metadata key " + hparams.architecture + ".nextn_predict_layers is " +
                   std::to_string(hparams.draft_layers) + "; supported is 1");
    }
}

// What a file of its own must share with the model: the hidden state, the tokens, the pages of
// keys and values.
void check_fits(const Hparams& drafter, const Hparams& base) {
    const struct {
        const char* what;
        uint32_t Hparams::* member;
    } kEqual[] = {{"embedding_length", &Hparams::width},
                  {"vocab_size", &Hparams::vocab},
                  {"attention.head_count", &Hparams::heads},
                  {"attention.head_count_kv", &Hparams::kv_heads},
                  {"attention.key_length", &Hparams::head_dim}};
    for (const auto& [what, member] : kEqual) {
        if (drafter.*member != base.*member) {
            refuse(ErrorKind::InvalidRequest,
                   "drafter.shape",
                   std::string("the drafter's ") + what + " is " + std::to_string(drafter.*member) +
                       ", the model's is " + std::to_string(base.*member) + "; they must be equal");
        }
    }
    if (drafter.streams.count != base.streams.count) {
        refuse(ErrorKind::InvalidRequest,
               "drafter.shape",
               "the drafter's hyper_connection.count is " + std::to_string(drafter.streams.count) +
                   ", the model's is " + std::to_string(base.streams.count) +
                   "; they must be equal");
    }
    if (drafter.layers != base.layers) {
        refuse(ErrorKind::InvalidRequest,
               "drafter.layers",
               "the drafter was made for a model of " + std::to_string(drafter.layers) +
                   " layers (block_count - nextn_predict_layers); the model has " +
                   std::to_string(base.layers));
    }
}

}  // namespace

Drafter::Drafter(const Model& base,
                 std::optional<gguf::File> file,
                 Hparams hparams,
                 const std::string& hidden_norm)
    : base_(&base), file_(std::move(file)), hparams_(std::move(hparams)) {
    check_layers(hparams_);
    check_form(this->file(), has_streams(hparams_) ? kStreamForms : kForms);
    hparams_.streams.has_whole_draft_norm = reads_whole_norm(this->file(), hparams_, hidden_norm);
    const Architecture& architecture = find_architecture(hparams_.architecture);
    if (architecture.build_draft == nullptr) {
        refuse(ErrorKind::Unsupported,
               "drafter.architecture",
               "draft layers of architecture \"" + hparams_.architecture + "\" are not supported");
    }
    GraphBuilder builder(files(), hparams_, GraphScope::Drafter);
    graph_ = architecture.build_draft(builder, hparams_);
}

Drafter Drafter::open_own(const Model& base, const std::string& hidden_norm) {
    if (base.draft_layers() == 0) {
        refuse(ErrorKind::Unsupported,
               "drafter.none",
               "the model's file has no draft layers (metadata key " + base.hparams().architecture +
                   ".nextn_predict_layers is missing or 0)");
    }
    return Drafter(base, std::nullopt, base.hparams(), hidden_norm);
}

Drafter Drafter::open_file(const Model& base,
                           const std::string& path,
                           const std::string& hidden_norm) {
    gguf::File file = gguf::File::open(path);
    const std::string& needed = base.hparams().architecture;
    const std::string_view name = file.find_string("general.architecture").value_or("");
    if (name != needed) {
        refuse(ErrorKind::InvalidRequest,
               "drafter.architecture",
               "the drafter's architecture is \"" + printable(name, 64) + "\", the model's is \"" +
                   needed + "\"; they must be equal");
    }
    Hparams hparams = find_architecture(needed).read_hparams(file, needed);
    strata::check_layers(file, hparams);
    if (hparams.vocab == 0) hparams.vocab = base.hparams().vocab;  // no tokenizer of its own
    check_layers(hparams);
    check_fits(hparams, base.hparams());
    return Drafter(base, std::move(file), std::move(hparams), hidden_norm);
}

std::optional<Drafter> Drafter::open(const Model& base,
                                     const std::string& mtp,
                                     const std::string& hidden_norm) {
    if (mtp == "off") {
        return std::nullopt;
    }
    return mtp == "model" ? open_own(base, hidden_norm) : open_file(base, mtp, hidden_norm);
}

}  // namespace strata
