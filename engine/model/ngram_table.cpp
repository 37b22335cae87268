#include "engine/model/ngram_table.h"

namespace strata {

namespace {

constexpr std::string_view kTable = "per_layer_token_embd";

}  // namespace

ValueId find_table_rows(GraphBuilder& b) {
    return b.ngram_rows(kTable);
}

void add_table(GraphBuilder& b, const Hparams& hp, ValueId x, ValueId rows) {
    const ValueId e = b.table_rows(rows, kTable);
    const ValueId key = b.norm_streams(b.matmul(e, "ple_key", hp.hidden_width()), "ple_norm_key");
    const ValueId scores = b.score_streams(key, b.norm_streams(x, "ple_norm_query"));
    const ValueId y = b.scale_streams(b.matmul(e, "ple_value", hp.width), scores);
    const ValueId n = b.norm_streams(y, "ple_norm_conv");
    const ValueId z = b.short_conv(n, "ple_conv1d", {hp.table.taps, hp.table.tokens});
    b.add(x, y);
    b.add(x, z);
}

}  // namespace strata
