// Split models: one model in several files NAME-00001-of-0000N.gguf, each a GGUF file with the
// metadata split.no (from 0), split.count and split.tensors.count. The first file has the model's
// metadata, and it is the one that is named: the others are found beside it by their names.
#pragma once

#include <string>
#include <vector>

#include "engine/gguf/header.h"

namespace strata::gguf {

inline constexpr uint64_t kShardsMax = 1024;

// Paths of the parts behind the first, of which `first` is the file and `header` the header; none
// where the model is one file. Throws Error "gguf.split" where the file is a later part or is not
// named as a first one, "gguf.limit" for more than kShardsMax parts, "gguf.split_missing" that
// lists the parts that are not there.
std::vector<std::string> other_shards(const FileBytes& first, const Header& header);

// That the files are all parts of one model, in order. Throws Error "gguf.split" where parts are
// left out, "gguf.split_foreign" that names the file which is not the part that its place needs.
void check_shards(const std::vector<FileBytes>& files, const std::vector<Header>& headers);

// That the last file may add its tensors to those of the first. Throws Error "gguf.companion".
void check_companion(const std::vector<FileBytes>& files, const std::vector<Header>& headers);

}  // namespace strata::gguf
