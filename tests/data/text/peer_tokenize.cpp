// Prints llama.cpp's token ids of texts, for generate.py. Not part of the build: it links against
// a llama.cpp tree (commit 0c1e57098), see generate.py.
// Input, repeated: parse_special (1 byte), length (u32, little-endian), bytes. Output: one line of
// ids per text.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
    if (argc != 2) return 1;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model* model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr) return 2;
    const llama_vocab* vocab = llama_model_get_vocab(model);
    for (int special = std::getchar(); special != EOF; special = std::getchar()) {
        uint32_t length = 0;
        if (std::fread(&length, sizeof length, 1, stdin) != 1) return 3;
        std::string text(length, '\0');
        if (length > 0 && std::fread(text.data(), 1, length, stdin) != length) return 3;
        std::vector<llama_token> ids(2 * length + 16);
        const int32_t count = llama_tokenize(vocab,
                                             text.data(),
                                             static_cast<int32_t>(length),
                                             ids.data(),
                                             static_cast<int32_t>(ids.size()),
                                             false,
                                             special != 0);
        if (count < 0) return 4;
        for (int32_t i = 0; i < count; ++i) std::printf(i > 0 ? " %d" : "%d", ids[i]);
        std::puts("");
    }
    return 0;
}
