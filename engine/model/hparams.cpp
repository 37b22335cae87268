#include "engine/model/hparams.h"

#include <algorithm>
#include <cstdio>

#include "engine/base/error.h"

namespace strata {

namespace {

constexpr uint64_t kLayersMax = 1024;
constexpr uint64_t kWidthMax = 1u << 17;
constexpr uint64_t kFfMax = 1u << 20;
constexpr uint64_t kHeadsMax = 4096;
constexpr uint64_t kExpertsMax = 4096;
constexpr uint64_t kExpertsUsedMax = 256;
constexpr uint64_t kHeadDimMax = 1024;
constexpr uint64_t kVocabMax = 1u << 22;
constexpr uint64_t kContextMax = 1u << 24;

// Short decimal form of a bound: "1e-12", "1024".
std::string number_text(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

[[noreturn]] void throw_bad(const std::string& key, const std::string& what) {
    throw Error(ErrorKind::InvalidRequest, "model.metadata", "metadata key " + key + " " + what);
}

[[noreturn]] void throw_unsupported(const std::string& key, const std::string& what) {
    throw Error(ErrorKind::Unsupported, "model.metadata", "metadata key " + key + " " + what);
}

uint32_t checked(const std::string& key, uint64_t value, uint64_t min, uint64_t max) {
    if (value < min || value > max) {
        throw_bad(key,
                  "is " + std::to_string(value) + "; allowed are " + std::to_string(min) + " to " +
                      std::to_string(max));
    }
    return static_cast<uint32_t>(value);
}

uint32_t read_vocab(const gguf::File& file, const MetadataReader& meta) {
    if (meta.has("vocab_size")) {
        return meta.required_uint("vocab_size", 1, kVocabMax);
    }
    const std::string key = "tokenizer.ggml.tokens";
    const std::optional<uint64_t> tokens = file.find_array_length(key);
    if (!tokens) return 0;
    return checked("length of " + key, *tokens, 1, kVocabMax);
}

void refuse_experts(const MetadataReader& meta) {
    if (meta.optional_uint("expert_count", 0, 0, UINT32_MAX) > 0) {
        throw_unsupported(
            meta.key("expert_count"),
            "asks for a mixture of experts; this architecture runs dense models only");
    }
}

// Ways to choose experts that Route does not have.
void refuse_other_routing(const MetadataReader& meta) {
    constexpr uint32_t kSoftmax = 1;  // 0 leaves it to the architecture
    const uint32_t gating = meta.optional_uint("expert_gating_func", kSoftmax, 0, UINT32_MAX);
    if (gating > kSoftmax) {
        throw_unsupported(meta.key("expert_gating_func"),
                          "is " + std::to_string(gating) + "; supported is 1, softmax");
    }
    const uint32_t groups = meta.optional_uint("expert_group_count", 1, 0, UINT32_MAX);
    if (groups > 1) {
        throw_unsupported(meta.key("expert_group_count"),
                          "is " + std::to_string(groups) + "; experts in groups are not supported");
    }
}

// What no graph computes must not be in the file.
void refuse_other_arithmetic(const MetadataReader& meta, uint32_t context) {
    const uint32_t window = meta.optional_uint("attention.sliding_window", 0, 0, UINT32_MAX);
    if (window > 0 && window < context) {
        throw_unsupported(
            meta.key("attention.sliding_window"),
            "is " + std::to_string(window) + "; attention over a sliding window is not supported");
    }
}

}  // namespace

std::vector<double> rope_frequencies(const Hparams& hparams) {
    return scaled_rope_frequencies(hparams.rope_scaling, hparams.rope_dims, hparams.rope_base);
}

uint32_t IndexSizes::place(uint32_t layer) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < layer; ++i) count += is_indexed_layer(i) ? 1 : 0;
    return count;
}

uint32_t Hparams::kv_index(uint32_t layer) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < layer; ++i) count += is_recurrent_layer(i) ? 0 : 1;
    return count;
}

MetadataReader::MetadataReader(const gguf::File& file, std::string_view architecture)
    : file_(file), prefix_(std::string(architecture) + ".") {}

std::string MetadataReader::key(std::string_view name) const {
    return prefix_ + std::string(name);
}

bool MetadataReader::has(std::string_view name) const {
    return file_.has(key(name));
}

uint32_t MetadataReader::required_uint(std::string_view name, uint64_t min, uint64_t max) const {
    const std::string full = key(name);
    const std::optional<std::vector<uint64_t>> values = file_.find_uint_array(full);
    if (!values || values->empty()) {
        throw_bad(full, "is missing");
    }
    if (std::any_of(values->begin(), values->end(), [&](uint64_t value) {
            return value != values->front();
        })) {
        throw_unsupported(full, "differs between layers, which is not supported");
    }
    return checked(full, values->front(), min, max);
}

uint32_t MetadataReader::optional_uint(std::string_view name,
                                       uint32_t fallback,
                                       uint64_t min,
                                       uint64_t max) const {
    return has(name) ? required_uint(name, min, max) : fallback;
}

std::optional<std::vector<uint32_t>> MetadataReader::layer_uints(std::string_view name,
                                                                 uint32_t blocks,
                                                                 uint64_t min,
                                                                 uint64_t max) const {
    const std::string full = key(name);
    const std::optional<std::vector<uint64_t>> found = file_.find_uint_array(full);
    if (!found) return std::nullopt;
    if (found->size() != 1 && found->size() != blocks) {
        throw_bad(full,
                  "has " + std::to_string(found->size()) + " entries; block_count is " +
                      std::to_string(blocks));
    }
    std::vector<uint32_t> values(blocks);
    for (uint32_t i = 0; i < blocks; ++i) {
        values[i] = checked(full, (*found)[found->size() == 1 ? 0 : i], min, max);
    }
    return values;
}

std::optional<uint32_t> MetadataReader::attention_uint(std::string_view name, uint64_t max) const {
    const std::string full = key(name);
    const std::optional<std::vector<uint64_t>> found = file_.find_uint_array(full);
    if (!found) return std::nullopt;
    uint64_t value = 0;
    for (const uint64_t entry : *found) {
        if (entry == 0 && found->size() > 1) continue;
        if (value != 0 && entry != value) {
            throw_unsupported(full, "differs between layers, which is not supported");
        }
        value = entry;
    }
    return checked(full, value, 1, max);
}

std::vector<bool> MetadataReader::layers_without(std::string_view name) const {
    const std::optional<std::vector<uint64_t>> found = file_.find_uint_array(key(name));
    if (!found || found->size() <= 1) return {};
    std::vector<bool> without(found->size());
    for (size_t i = 0; i < without.size(); ++i) without[i] = (*found)[i] == 0;
    return without;
}

double MetadataReader::required_float(std::string_view name, double min, double max) const {
    const std::string full = key(name);
    const std::optional<double> value = file_.find_float(full);
    if (!value) {
        throw_bad(full, "is missing");
    }
    if (!(*value >= min && *value <= max)) {  // false for NaN as well
        throw_bad(full,
                  "is " + number_text(*value) + "; allowed are " + number_text(min) + " to " +
                      number_text(max));
    }
    return *value;
}

double MetadataReader::optional_float(std::string_view name,
                                      double fallback,
                                      double min,
                                      double max) const {
    return has(name) ? required_float(name, min, max) : fallback;
}

std::string MetadataReader::optional_string(std::string_view name,
                                            std::string_view fallback) const {
    return std::string(file_.find_string(key(name)).value_or(fallback));
}

namespace {

// All but the sizes of the feed-forward part.
Hparams read_attention_hparams(const gguf::File& file,
                               const MetadataReader& meta,
                               std::string_view architecture) {
    Hparams hp;
    hp.architecture = std::string(architecture);
    const uint32_t blocks = meta.required_uint("block_count", 1, kLayersMax);
    hp.draft_layers = meta.optional_uint("nextn_predict_layers", 0, 0, blocks - 1);
    hp.layers = blocks - hp.draft_layers;
    hp.context = meta.required_uint("context_length", 1, kContextMax);
    hp.width = meta.required_uint("embedding_length", 1, kWidthMax);
    const std::optional<uint32_t> heads = meta.attention_uint("attention.head_count", kHeadsMax);
    if (!heads) throw_bad(meta.key("attention.head_count"), "is missing");
    hp.heads = *heads;
    hp.kv_heads = meta.attention_uint("attention.head_count_kv", kHeadsMax).value_or(hp.heads);
    if (hp.heads % hp.kv_heads != 0) {
        throw_bad(meta.key("attention.head_count_kv"),
                  "is " + std::to_string(hp.kv_heads) + ", which does not divide the " +
                      std::to_string(hp.heads) + " heads of attention.head_count");
    }
    if (!meta.has("attention.key_length") && hp.width % hp.heads != 0) {
        throw_bad(meta.key("attention.key_length"),
                  "is missing, and embedding_length " + std::to_string(hp.width) +
                      " is no multiple of the " + std::to_string(hp.heads) + " heads");
    }
    hp.head_dim = meta.optional_uint("attention.key_length", hp.width / hp.heads, 1, kHeadDimMax);
    checked(meta.key("attention.key_length"), hp.head_dim, 1, kHeadDimMax);
    const uint32_t value_length =
        meta.optional_uint("attention.value_length", hp.head_dim, 1, kHeadDimMax);
    if (value_length != hp.head_dim) {
        throw_unsupported(meta.key("attention.value_length"),
                          "is " + std::to_string(value_length) + " and key_length is " +
                              std::to_string(hp.head_dim) + "; they must be equal");
    }
    hp.eps =
        static_cast<float>(meta.required_float("attention.layer_norm_rms_epsilon", 1e-12, 0.1));
    hp.rope_dims = meta.optional_uint("rope.dimension_count", hp.head_dim, 2, hp.head_dim);
    if (hp.rope_dims % 2 != 0) {
        throw_bad(meta.key("rope.dimension_count"),
                  "is " + std::to_string(hp.rope_dims) + "; it must be even");
    }
    hp.rope_base = meta.optional_float("rope.freq_base", 10000.0, 1.0, 1e12);
    hp.rope_scaling = read_rope_scaling(meta, {hp.rope_dims, hp.rope_base, hp.context});
    hp.vocab = read_vocab(file, meta);
    refuse_other_arithmetic(meta, hp.context);
    return hp;
}

// Per-layer widths go to `by_layer` where they differ; returns the widest.
uint32_t read_ff(const MetadataReader& meta,
                 std::string_view name,
                 const Hparams& hp,
                 std::vector<uint32_t>& by_layer) {
    std::optional<std::vector<uint32_t>> widths =
        meta.layer_uints(name, hp.layers + hp.draft_layers, 1, kFfMax);
    if (!widths) throw_bad(meta.key(name), "is missing");
    const uint32_t widest = *std::max_element(widths->begin(), widths->end());
    const uint32_t narrowest = *std::min_element(widths->begin(), widths->end());
    if (narrowest != widest) by_layer = std::move(*widths);
    return widest;
}

MoeSizes read_moe_sizes(const MetadataReader& meta, const Hparams& hp) {
    MoeSizes moe;
    moe.experts = meta.required_uint("expert_count", 1, kExpertsMax);
    moe.used = meta.required_uint(
        "expert_used_count", 1, std::min<uint64_t>(moe.experts, kExpertsUsedMax));
    moe.ff = read_ff(meta, "expert_feed_forward_length", hp, moe.ff_by_layer);
    moe.shared_ff = meta.optional_uint("expert_shared_feed_forward_length", 0, 0, kFfMax);
    moe.weights_scale =
        static_cast<float>(meta.optional_float("expert_weights_scale", 1.0, 0.0, 1e6));
    if (moe.weights_scale == 0) {  // files write 0 for no scale
        moe.weights_scale = 1;
    }
    refuse_other_routing(meta);
    return moe;
}

}  // namespace

void check_layers(const gguf::File& file, const Hparams& hp) {
    const MetadataReader meta(file, hp.architecture);
    for (const char* name : {"attention.head_count", "attention.head_count_kv"}) {
        const std::vector<bool> without = meta.layers_without(name);
        for (uint32_t layer = 0; layer < without.size(); ++layer) {
            if (without[layer] && !hp.is_recurrent_layer(layer)) {
                throw_unsupported(meta.key(name),
                                  "is 0 for layer " + std::to_string(layer) +
                                      ", which has attention in this architecture");
            }
        }
    }
}

Hparams read_dense_hparams(const gguf::File& file, std::string_view architecture) {
    const MetadataReader meta(file, architecture);
    Hparams hp = read_attention_hparams(file, meta, architecture);
    hp.ff = read_ff(meta, "feed_forward_length", hp, hp.ff_by_layer);
    refuse_experts(meta);
    return hp;
}

Hparams read_moe_hparams(const gguf::File& file, std::string_view architecture) {
    const MetadataReader meta(file, architecture);
    Hparams hp = read_attention_hparams(file, meta, architecture);
    hp.moe = read_moe_sizes(meta, hp);
    return hp;
}

}  // namespace strata
