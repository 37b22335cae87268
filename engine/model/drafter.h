// A multi-token-prediction drafter opened beside the model that it drafts for: one more layer that
// predicts the token behind the next one from a token and the model's hidden state. It comes from
// the model's own file ("blk.L." behind the model's layers, metadata nextn_predict_layers) or from
// a file of its own. Reads headers only.
//
// Row p of a draft step takes token x_p and the hidden state of position p - 1 (zeros for p = 0):
//   x = eh_proj(concat(RMS(embedding of x_p; enorm), RMS(hidden; hnorm)))
//   x = the layer, with keys and values of its own
//   h = RMS(x; shared_head_norm)           fed to the next draft step as its hidden state
//   logits = output head of the model on h
// Of models with residual streams (hyper_connection.h) the hidden state is all streams behind the
// last layer; hnorm norms each (metadata nextn.hidden_norm "whole": all together), eh_proj gives
// each from the embedding and its own part, and the head reads the streams mixed by nextn.hc_head.
//
// Embedding, head and final norm are the model's, except where the draft layer brings its own
// (nextn.embed_tokens, nextn.shared_head_head, nextn.shared_head_norm).
#pragma once

#include <optional>
#include <string>

#include "engine/model/model.h"

namespace strata {

class Drafter {
  public:
    // From the draft layer of the model's own file. Throws Error "drafter.none" where the file has
    // none, and as open().
    static Drafter open_own(const Model& base, const std::string& hidden_norm);
    // From a file of its own, whose first part is named where it is split; tensors in it that are
    // not of the draft layer are not used: embedding and head are the model's. Throws Error
    // "gguf.*" (file) and "model.metadata" as Model::open; "drafter.architecture",
    // "drafter.layers", "drafter.shape", "drafter.metadata" where the file does not fit the model;
    // "drafter.tensor_missing", "drafter.tensor_shape", "drafter.tensor_type" and
    // "drafter.tensor_unexpected". A hash of the whole base file that the metadata may give
    // (nextn.base_sha256) is not compared: it would read all weights, and every quantisation of
    // the same model has another one.
    static Drafter open_file(const Model& base,
                             const std::string& path,
                             const std::string& hidden_norm);
    // As ModePlan::mtp says: "model" or a path; nothing for "off". `hidden_norm` is
    // ModePlan::mtp_hidden_norm: "auto" leaves the form to the file's metadata.
    static std::optional<Drafter> open(const Model& base,
                                       const std::string& mtp,
                                       const std::string& hidden_norm);

    // Sizes of the draft layer. Width, vocabulary, heads and head size are the model's.
    const Hparams& hparams() const { return hparams_; }
    const Graph& graph() const { return graph_; }
    // Slices of graph() lie in these; valid while drafter and model stay where they are.
    TensorFiles files() const { return base_->files(file_ ? &*file_ : nullptr); }
    // Whether it comes from a file of its own.
    bool has_file() const { return file_.has_value(); }
    const gguf::File& file() const { return file_ ? *file_ : base_->file(); }

  private:
    Drafter(const Model& base,
            std::optional<gguf::File> file,
            Hparams hparams,
            const std::string& hidden_norm);

    const Model* base_;  // outlives the drafter
    std::optional<gguf::File> file_;
    Hparams hparams_;
    Graph graph_;
};

}  // namespace strata
