// The sizes and constants of a model, read from GGUF metadata. Every value is range-checked here,
// so the rest of the engine can compute with them without overflow or surprise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf/file.h"
#include "engine/model/rope_scaling.h"

namespace strata {

// Sizes of gated DeltaNet layers.
struct DeltaSizes {
    uint32_t taps = 0;      // of the convolution over time; 0: there are no such layers
    uint32_t head_dim = 0;  // of keys and values
    uint32_t key_heads = 0;
    uint32_t value_heads = 0;  // a multiple of key_heads

    uint32_t keys_width() const { return key_heads * head_dim; }
    uint32_t values_width() const { return value_heads * head_dim; }
    // Channels of the convolution: queries, keys, values.
    uint32_t channels() const { return 2 * keys_width() + values_width(); }
};

// Of the mixture of experts that stands in the place of a feed-forward part (moe.h).
struct MoeSizes {
    uint32_t experts = 0;    // 0: none
    uint32_t used = 0;       // that each row chooses
    uint32_t ff = 0;         // inner width of an expert, of the widest layer
    uint32_t shared_ff = 0;  // of the expert that every row has; 0: none
    float weights_scale = 1;
    std::vector<uint32_t> ff_by_layer;  // where layers differ, of draft layers too; else empty
};

// Of hyper-connections (hyper_connection.h): the residual stream is `count` vectors of `width`.
struct StreamSizes {
    uint32_t count = 1;     // 1: a plain residual stream
    uint32_t low_rank = 0;  // inner width of a connection
    // A draft layer norms its hidden state as a whole, and not each stream.
    bool has_whole_draft_norm = false;
};

// Of what the rows of attention layers choose what they attend to by (qwen4exp.cpp).
struct IndexSizes {
    uint32_t heads = 0;
    uint32_t head_dim = 0;
    uint32_t block_tokens = 0;     // that one block key stands for
    uint32_t blocks_used = 0;      // that a row chooses
    std::vector<bool> is_indexed;  // [layers]; empty where no context is long enough to choose

    bool is_indexed_layer(uint32_t layer) const {
        return layer < is_indexed.size() && is_indexed[layer];
    }
    // Indexed layers below `layer`: the place of the layer's own keys.
    uint32_t place(uint32_t layer) const;
    uint32_t layers() const { return place(static_cast<uint32_t>(is_indexed.size())); }
};

// Of a table addressed by n-grams of token ids (ngram_table.h).
struct TableSizes {
    uint32_t layer = 0;           // before which its values are added
    uint32_t tokens = 0;          // of the longest n-gram; 0: there is no table
    uint32_t heads = 0;           // rows that a token reads
    uint32_t width = 0;           // of a row
    uint32_t taps = 0;            // of the convolution over time, `tokens` positions apart
    uint64_t rows = 0;            // that the hash may name
    std::vector<uint64_t> words;  // constants of the hash (engine/plan/ngram.h)

    bool is_present() const { return tokens > 0; }
};

struct Hparams {
    std::string architecture;
    uint32_t layers = 0;                // without draft layers
    uint32_t draft_layers = 0;          // for multi-token prediction, behind the others
    uint32_t width = 0;                 // of the residual stream
    uint32_t ff = 0;                    // inner width of the feed-forward part, of the widest layer
    std::vector<uint32_t> ff_by_layer;  // where layers differ, of draft layers too; else empty
    MoeSizes moe;                       // in its place
    uint32_t heads = 0;                 // a multiple of kv_heads
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;   // of queries, keys and values
    uint32_t vocab = 0;      // 0: the file does not say, which a drafter's need not
    uint32_t context = 0;    // tokens the model was made for
    float eps = 0;           // of RmsNorm
    uint32_t rope_dims = 0;  // rotated elements of each head, even
    double rope_base = 0;
    RopeScaling rope_scaling;
    std::vector<bool> is_recurrent;  // [layers] of models with recurrent layers, else empty
    DeltaSizes delta;                // of the recurrent layers
    StreamSizes streams;
    IndexSizes index;
    TableSizes table;

    // Elements of a row's residual streams, which drafts start from.
    uint32_t hidden_width() const { return streams.count * width; }

    bool has_recurrent_layers() const { return delta.taps > 0; }
    bool is_recurrent_layer(uint32_t layer) const {
        return layer < is_recurrent.size() && is_recurrent[layer];
    }
    uint32_t ff_of(uint32_t layer) const {
        return layer < ff_by_layer.size() ? ff_by_layer[layer] : ff;
    }
    uint32_t expert_ff_of(uint32_t layer) const {
        return layer < moe.ff_by_layer.size() ? moe.ff_by_layer[layer] : moe.ff;
    }
    // Layers below `layer` that keep keys and values: the place of the layer's own.
    uint32_t kv_index(uint32_t layer) const;
    uint32_t kv_layers() const { return kv_index(layers); }  // without draft layers
};

// Rope frequencies before the factors, as scaled: [rope_dims / 2].
std::vector<double> rope_frequencies(const Hparams& hparams);

// Elements of a rope table: the frequencies, then the magnitude.
inline uint64_t rope_table_elements(const Hparams& hparams) {
    return hparams.rope_dims / 2 + 1;
}

// Metadata keys of one architecture ("llama.block_count"), read with range checks. All methods
// throw Error{InvalidRequest, "model.metadata"} that names the key and the allowed range.
class MetadataReader {
  public:
    MetadataReader(const gguf::File& file, std::string_view architecture);

    // `name` goes without the architecture's prefix. A list is accepted when its entries are equal;
    // entries that differ by layer are Unsupported.
    uint32_t required_uint(std::string_view name, uint64_t min, uint64_t max) const;
    uint32_t optional_uint(std::string_view name,
                           uint32_t fallback,
                           uint64_t min,
                           uint64_t max) const;
    double required_float(std::string_view name, double min, double max) const;
    double optional_float(std::string_view name, double fallback, double min, double max) const;
    std::string optional_string(std::string_view name, std::string_view fallback) const;
    // One value for each of `blocks` layers, draft layers included: a list of so many, or of one
    // value for all. Nothing where the key is missing.
    std::optional<std::vector<uint32_t>> layer_uints(std::string_view name,
                                                     uint32_t blocks,
                                                     uint64_t min,
                                                     uint64_t max) const;
    // The one value of the layers that have one: a list may have 0 for the others, in which these
    // are left to the caller (layers_without); else as required_uint.
    std::optional<uint32_t> attention_uint(std::string_view name, uint64_t max) const;
    // Whether each layer has 0 in a list of one value per layer; empty where `name` is no list.
    std::vector<bool> layers_without(std::string_view name) const;
    bool has(std::string_view name) const;
    std::string key(std::string_view name) const;  // with the prefix

  private:
    const gguf::File& file_;
    std::string prefix_;
};

// That lists of one entry per layer (attention.head_count, attention.head_count_kv) have 0 for no
// layer but recurrent ones. Throws Error{Unsupported, "model.metadata"}.
void check_layers(const gguf::File& file, const Hparams& hparams);

// Sizes of a dense attention model (llama, qwen3 and their like). Refuses with
// Error{Unsupported, "model.metadata"} what would change the arithmetic and is not built: mixtures
// of experts, sliding windows, rope scaling other than linear and YaRN, unequal key and value
// lengths.
Hparams read_dense_hparams(const gguf::File& file, std::string_view architecture);

// The same of a model whose every feed-forward part is a mixture of experts (qwen3moe and its
// like), with Hparams::moe in the place of `ff`.
Hparams read_moe_hparams(const gguf::File& file, std::string_view architecture);

}  // namespace strata
