#include "engine/model/hyper_connection.h"

#include <string>

namespace strata {

namespace {

ValueId mix_normed(GraphBuilder& b, const Hparams& hp, ValueId n, const std::string& name) {
    const ValueId low = b.matmul(n, name + "_down", hp.streams.low_rank);
    return b.mix_streams(n, b.matmul(b.stream_silu(low), name + "_up", hp.hidden_width()));
}

}  // namespace

Connection connect(GraphBuilder& b, const Hparams& hp, ValueId x, std::string_view name) {
    const std::string prefix(name);
    const ValueId n = b.norm_streams(x, prefix + "_norm");
    const ValueId input = mix_normed(b, hp, n, prefix);
    return {input, b.matmul(n, prefix + "_inject", hp.streams.count)};
}

ValueId mix(GraphBuilder& b, const Hparams& hp, ValueId x, std::string_view name) {
    const std::string prefix(name);
    return mix_normed(b, hp, b.norm_streams(x, prefix + "_norm"), prefix);
}

}  // namespace strata
