// The builder's nodes of draft layers (drafter.h).
#include "engine/model/graph_builder.h"

namespace strata {

ValueId GraphBuilder::draft_input(std::string_view embedding_tensor) {
    const ValueId token = add_embed(own_or("nextn.embed_tokens", embedding_tensor));
    const ValueId hidden = new_value(hp_.width, false);
    add_node(NodeKind::Input).out = hidden;
    const ValueId first = norm(token, "nextn.enorm");
    const ValueId second = norm(hidden, "nextn.hnorm");
    return draft_projection(first, second, hp_.width);
}

ValueId GraphBuilder::draft_projection(ValueId token, ValueId hidden, uint32_t n) {
    if (has("nextn.eh_proj") || !has("nextn.fc_embd")) {
        return matmul(concat(token, hidden), "nextn.eh_proj", n);
    }
    const ValueId x = matmul(token, "nextn.fc_embd", n);
    add(x, matmul(hidden, "nextn.fc_hidden", n));
    return x;
}

ValueId GraphBuilder::draft_head(ValueId x,
                                 std::string_view norm_tensor,
                                 std::string_view embedding_tensor) {
    const ValueId hidden =
        add_norm(x, own_or("nextn.shared_head_norm", norm_tensor), graph_.values[x].width);
    return draft_logits(hidden, embedding_tensor);
}

ValueId GraphBuilder::draft_logits(ValueId x, std::string_view embedding_tensor) {
    return has("nextn.shared_head_head") ? add_head(x, full_name("nextn.shared_head_head", ""))
                                         : head(x, embedding_tensor);
}

}  // namespace strata
