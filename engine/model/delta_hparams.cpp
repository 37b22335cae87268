#include "engine/model/delta_hparams.h"

#include <algorithm>
#include <string>

#include "engine/base/error.h"

namespace strata {

namespace {

constexpr uint64_t kIntervalMax = 1024;
constexpr uint64_t kTapsMax = 64;
constexpr uint64_t kStateSizeMax = 1024;
constexpr uint64_t kStateHeadsMax = 4096;

[[noreturn]] void refuse(ErrorKind kind, const std::string& key, const std::string& what) {
    throw Error(kind, "model.metadata", "metadata key " + key + " " + what);
}

// One entry a block, the draft layers' included; these have attention.
std::vector<bool> read_recurrent(const gguf::File& file,
                                 const MetadataReader& meta,
                                 const Hparams& hp) {
    const uint32_t blocks = hp.layers + hp.draft_layers;
    std::vector<bool> recurrent(hp.layers);
    if (meta.has("attention.recurrent_layers")) {
        const std::string key = meta.key("attention.recurrent_layers");
        const std::vector<bool> entries = file.find_bool_array(key).value_or(std::vector<bool>{});
        if (entries.size() != blocks && entries.size() != hp.layers) {
            refuse(ErrorKind::InvalidRequest,
                   key,
                   "has " + std::to_string(entries.size()) + " entries; block_count is " +
                       std::to_string(blocks));
        }
        for (uint32_t i = 0; i < entries.size(); ++i) {
            if (i < hp.layers) {
                recurrent[i] = entries[i];
            } else if (entries[i]) {
                refuse(ErrorKind::Unsupported, key, "names a draft layer; these have attention");
            }
        }
    } else {
        const uint32_t interval = meta.optional_uint("full_attention_interval", 4, 1, kIntervalMax);
        for (uint32_t i = 0; i < hp.layers; ++i) recurrent[i] = (i + 1) % interval != 0;
    }
    return recurrent;
}

void check_equal(const MetadataReader& meta,
                 std::string_view name,
                 uint32_t value,
                 uint32_t needed,
                 const std::string& why) {
    if (value != needed) {
        refuse(ErrorKind::InvalidRequest,
               meta.key(name),
               "is " + std::to_string(value) + "; " + why + " " + std::to_string(needed));
    }
}

// Sections of rope give each frequency the position of time, height, width or a fourth. Text has
// one position, which the first three hold.
void check_sections(const gguf::File& file, const MetadataReader& meta, const Hparams& hp) {
    const std::string key = meta.key("rope.dimension_sections");
    const auto sections = file.find_uint_array(key);
    if (!sections) return;
    if (sections->size() < 3 || sections->size() > 4) {
        refuse(ErrorKind::InvalidRequest,
               key,
               "has " + std::to_string(sections->size()) + " entries; allowed are 3 and 4");
    }
    for (uint32_t i = 0; i < hp.rope_dims / 2; ++i) {
        if (i >= 3 * (*sections)[i % 3]) {
            refuse(
                ErrorKind::Unsupported,
                key,
                "leaves frequency " + std::to_string(i) + " to a position that text does not have");
        }
    }
}

}  // namespace

void read_delta_sizes(const gguf::File& file, std::string_view architecture, Hparams& hp) {
    const MetadataReader meta(file, architecture);
    hp.is_recurrent = read_recurrent(file, meta, hp);
    if (hp.kv_layers() == 0) {
        const bool is_named = meta.has("attention.recurrent_layers");
        refuse(ErrorKind::Unsupported,
               meta.key(is_named ? "attention.recurrent_layers" : "full_attention_interval"),
               "leaves no layer of attention; models without any are not supported");
    }
    hp.delta.taps = meta.required_uint("ssm.conv_kernel", 1, kTapsMax);
    hp.delta.head_dim = meta.required_uint("ssm.state_size", 1, kStateSizeMax);
    hp.delta.key_heads = meta.required_uint("ssm.group_count", 1, kStateHeadsMax);
    hp.delta.value_heads = meta.required_uint("ssm.time_step_rank", 1, kStateHeadsMax);
    if (hp.delta.value_heads % hp.delta.key_heads != 0) {
        refuse(ErrorKind::InvalidRequest,
               meta.key("ssm.time_step_rank"),
               "is " + std::to_string(hp.delta.value_heads) + ", which is no multiple of the " +
                   std::to_string(hp.delta.key_heads) + " key heads of ssm.group_count");
    }
    const uint32_t inner = meta.required_uint("ssm.inner_size", 1, kStateSizeMax * kStateHeadsMax);
    check_equal(meta,
                "ssm.inner_size",
                inner,
                hp.delta.values_width(),
                "ssm.time_step_rank * ssm.state_size is");
    check_sections(file, meta, hp);
}

Hparams read_delta_hparams(const gguf::File& file, std::string_view architecture) {
    Hparams hp = read_dense_hparams(file, architecture);
    read_delta_sizes(file, architecture, hp);
    return hp;
}

Hparams read_delta_moe_hparams(const gguf::File& file, std::string_view architecture) {
    Hparams hp = read_moe_hparams(file, architecture);
    read_delta_sizes(file, architecture, hp);
    return hp;
}

}  // namespace strata
