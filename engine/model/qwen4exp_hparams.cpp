#include "engine/model/qwen4exp_hparams.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/delta_hparams.h"
#include "engine/plan/ngram.h"

namespace strata {

namespace {

constexpr uint64_t kStreamsMax = 16;
constexpr uint64_t kLowRankMax = 1u << 14;
constexpr uint64_t kTableHeadsMax = 64;  // of n-grams of one length
constexpr uint64_t kTableWidthMax = 1u << 14;
constexpr uint64_t kTapsMax = 8;
constexpr uint64_t kTableRowsMax = UINT32_MAX;
constexpr uint64_t kRatioMax = 1024;
constexpr uint64_t kTopKMax = 1u << 24;
constexpr uint64_t kIndexHeadsMax = 256;
constexpr uint64_t kIndexDimMax = 1024;

[[noreturn]] void refuse(ErrorKind kind, const std::string& key, const std::string& what) {
    throw Error(kind, "model.metadata", "metadata key " + key + " " + what);
}

// A list of `count` numbers.
std::vector<uint64_t> required_list(const gguf::File& file, const std::string& key, size_t count) {
    const auto values = file.find_uint_array(key);
    if (!values) refuse(ErrorKind::InvalidRequest, key, "is missing");
    if (values->size() != count) {
        refuse(ErrorKind::InvalidRequest,
               key,
               "has " + std::to_string(values->size()) + " entries; needed are " +
                   std::to_string(count));
    }
    return *values;
}

// --- Selected attention

// Of each layer the tokens that its index keys stand for; 0: it attends to everything.
std::vector<uint32_t> read_ratios(const gguf::File& file,
                                  const MetadataReader& meta,
                                  const Hparams& hp) {
    const std::string key = meta.key("attention.compress_ratios");
    std::vector<uint32_t> ratios(hp.layers, 0);
    const auto values = file.find_uint_array(key);
    if (!values) return ratios;
    const uint32_t blocks = hp.layers + hp.draft_layers;
    if (values->size() != blocks && values->size() != hp.layers) {
        refuse(ErrorKind::InvalidRequest,
               key,
               "has " + std::to_string(values->size()) + " entries; block_count is " +
                   std::to_string(blocks));
    }
    // What it says about draft layers has no use: these attend to everything.
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        const uint64_t ratio = (*values)[layer];
        if (ratio > kRatioMax) {
            refuse(
                ErrorKind::InvalidRequest,
                key,
                "has " + std::to_string(ratio) + "; allowed are 0 to " + std::to_string(kRatioMax));
        }
        if (ratio > 0 && hp.is_recurrent_layer(layer)) {
            refuse(ErrorKind::InvalidRequest,
                   key,
                   "is " + std::to_string(ratio) + " for layer " + std::to_string(layer) +
                       ", which is recurrent");
        }
        ratios[layer] = static_cast<uint32_t>(ratio);
    }
    return ratios;
}

// Queries of a layer choose as soon as a context has more blocks than they may choose. Where none
// has, there is nothing to choose by.
void read_index(const gguf::File& file, const MetadataReader& meta, Hparams& hp) {
    const std::vector<uint32_t> ratios = read_ratios(file, meta, hp);
    IndexSizes& index = hp.index;
    for (const uint32_t ratio : ratios) {
        if (ratio == 0 || ratio == index.block_tokens) continue;
        if (index.block_tokens != 0) {
            refuse(ErrorKind::Unsupported,
                   meta.key("attention.compress_ratios"),
                   "has " + std::to_string(index.block_tokens) + " and " + std::to_string(ratio) +
                       "; supported is one number beside 0");
        }
        index.block_tokens = ratio;
    }
    if (index.block_tokens == 0) return;
    const uint32_t top_k =
        meta.required_uint("attention.indexer.top_k", index.block_tokens, kTopKMax);
    index.blocks_used = top_k / index.block_tokens;
    if (hp.context / index.block_tokens <= index.blocks_used) return;
    index.heads = meta.required_uint("attention.indexer.head_count", 1, kIndexHeadsMax);
    index.head_dim = meta.required_uint("attention.indexer.key_length", hp.rope_dims, kIndexDimMax);
    for (const uint32_t ratio : ratios) index.is_indexed.push_back(ratio > 0);
}

// --- The table of n-grams

void read_hash(const gguf::File& file, const MetadataReader& meta, TableSizes& table) {
    const std::string sizes_key = meta.key("ple.head_vocab_sizes");
    const std::string offsets_key = meta.key("ple.head_offsets");
    table.words = required_list(file, meta.key("ple.layer_multipliers"), table.tokens);
    const auto sizes = required_list(file, sizes_key, table.heads);
    const auto offsets = required_list(file, offsets_key, table.heads);
    for (uint32_t head = 0; head < table.heads; ++head) {
        const uint64_t size = sizes[head];
        const uint64_t offset = offsets[head];
        if (size < 1 || size > kTableRowsMax) {
            refuse(ErrorKind::InvalidRequest,
                   sizes_key,
                   "has " + std::to_string(size) + "; allowed are 1 to " +
                       std::to_string(kTableRowsMax));
        }
        if (offset > kTableRowsMax - size) {
            refuse(ErrorKind::InvalidRequest,
                   offsets_key,
                   "has " + std::to_string(offset) + ", behind the largest table");
        }
        table.rows = std::max(table.rows, offset + size);
    }
    table.words.insert(table.words.end(), sizes.begin(), sizes.end());
    table.words.insert(table.words.end(), offsets.begin(), offsets.end());
    table.words.push_back(meta.required_uint("ple.eos_token_id", 0, UINT32_MAX));
}

constexpr std::array<std::string_view, 9> kTableKeys = {"ple.layers",
                                                        "ple.ngram_size",
                                                        "ple.heads_per_ngram",
                                                        "ple.conv_kernel",
                                                        "ple.eos_token_id",
                                                        "ple.layer_multipliers",
                                                        "ple.head_offsets",
                                                        "ple.head_vocab_sizes",
                                                        "embedding_length_per_layer_input"};

void read_table(const gguf::File& file, const MetadataReader& meta, Hparams& hp) {
    const auto is_there = [&](std::string_view key) { return meta.has(key); };
    if (std::none_of(kTableKeys.begin(), kTableKeys.end(), is_there)) return;
    const std::string layers_key = meta.key("ple.layers");
    const auto layers = file.find_uint_array(layers_key);
    if (!layers) refuse(ErrorKind::InvalidRequest, layers_key, "is missing");
    if (layers->size() != 1) {
        refuse(ErrorKind::Unsupported,
               layers_key,
               "names " + std::to_string(layers->size()) + " layers; supported is one");
    }
    if (layers->front() >= hp.layers) {
        refuse(ErrorKind::InvalidRequest,
               layers_key,
               "names layer " + std::to_string(layers->front()) + "; the model has " +
                   std::to_string(hp.layers));
    }
    TableSizes& table = hp.table;
    table.layer = static_cast<uint32_t>(layers->front());
    table.tokens = meta.required_uint("ple.ngram_size", 2, kNgramTokensMax);
    table.heads = (table.tokens - 1) * meta.required_uint("ple.heads_per_ngram", 1, kTableHeadsMax);
    table.width = meta.required_uint("embedding_length_per_layer_input", 1, kTableWidthMax);
    table.taps = meta.required_uint("ple.conv_kernel", 1, kTapsMax);
    // Stands for images, which text does not have.
    (void)meta.optional_uint("ple.image_token_id", 0, 0, UINT32_MAX);
    read_hash(file, meta, table);
}

}  // namespace

Hparams read_qwen4exp_hparams(const gguf::File& file, std::string_view architecture) {
    const MetadataReader meta(file, architecture);
    Hparams hp = read_moe_hparams(file, architecture);
    read_delta_sizes(file, architecture, hp);
    hp.streams.count = meta.required_uint("hyper_connection.count", 1, kStreamsMax);
    hp.streams.low_rank = meta.required_uint("hyper_connection.low_rank", 1, kLowRankMax);
    read_table(file, meta, hp);
    read_index(file, meta, hp);
    return hp;
}

}  // namespace strata
