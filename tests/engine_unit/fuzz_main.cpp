// Runs a fuzz target without libFuzzer, so that it also runs under g++: replays files and folders
// given as arguments (the corpus), then seeded mutations of them. The same seed gives the same
// inputs. A target that finds a bug aborts; the input is then in the file "fuzz-crash.bin".
//
//   NAME_standalone [--runs N] [--seed N] [--max-bytes N] [FILE | FOLDER]...
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

const Bytes* current = nullptr;  // for the handler of SIGABRT only

extern "C" void save_input(int) {
    if (std::FILE* file = current ? std::fopen("fuzz-crash.bin", "wb") : nullptr) {
        std::fwrite(current->data(), 1, current->size(), file);
        std::fclose(file);
    }
    std::signal(SIGABRT, SIG_DFL);
    std::raise(SIGABRT);
}

void run(const Bytes& input) {
    current = &input;
    LLVMFuzzerTestOneInput(input.data(), input.size());
    current = nullptr;
}

Bytes read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

class Mutator {
  public:
    Mutator(uint64_t seed, size_t bytes_max) : random_(seed), bytes_max_(bytes_max) {}

    Bytes next(const std::vector<Bytes>& corpus) {
        Bytes input = corpus.empty() ? Bytes() : corpus[below(corpus.size())];
        if (!corpus.empty() && below(8) == 0) {
            const Bytes& other = corpus[below(corpus.size())];
            input.insert(input.end(), other.begin(), other.end());
        }
        const size_t changes = 1 + below(6);
        for (size_t i = 0; i < changes; ++i) change(input);
        if (input.size() > bytes_max_) input.resize(bytes_max_);
        return input;
    }

  private:
    size_t below(size_t bound) { return random_() % bound; }

    void change(Bytes& input) {
        static constexpr uint8_t kTelling[] = {
            0x00, 0x01, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6, 0xc9,
            0xca, 0xcb, 0xcf, 0xd3, 0xd4, 0xd8, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff};
        const size_t at = input.empty() ? 0 : below(input.size());
        const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
        switch (input.empty() ? 0 : below(7)) {
            case 0:
                input.insert(place, static_cast<uint8_t>(random_()));
                break;
            case 1:
                input.erase(place);
                break;
            case 2:
                input[at] ^= static_cast<uint8_t>(1u << below(8));
                break;
            case 3:
                input[at] = kTelling[below(std::size(kTelling))];
                break;
            case 4:
                input.resize(at);
                break;
            case 5: {  // four bytes at once: lengths and counts
                const uint64_t value = below(2) ? random_() : uint64_t{0} - below(16);
                std::memcpy(&input[at], &value, std::min<size_t>(4, input.size() - at));
                break;
            }
            default: {  // repeat a part
                const Bytes part(place,
                                 place + static_cast<std::ptrdiff_t>(
                                             std::min<size_t>(1 + below(64), input.size() - at)));
                input.insert(input.end(), part.begin(), part.end());
            }
        }
    }

    std::mt19937_64 random_;
    size_t bytes_max_;
};

}  // namespace

int main(int count, char** words) {
    uint64_t runs = 0;
    uint64_t seed = 1;
    size_t bytes_max = 4096;
    std::vector<Bytes> corpus;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word.rfind("--", 0) == 0) {
            if (i + 1 == count) {
                std::fprintf(stderr, "%s needs a number\n", words[i]);
                return 64;
            }
            const uint64_t value = std::strtoull(words[++i], nullptr, 10);
            if (word == "--runs") {
                runs = value;
            } else if (word == "--seed") {
                seed = value;
            } else if (word == "--max-bytes") {
                bytes_max = value;
            } else {
                std::fprintf(stderr, "unknown flag %s\n", word.c_str());
                return 64;
            }
        } else if (std::filesystem::is_directory(word)) {
            std::vector<std::filesystem::path> paths;
            for (const auto& entry : std::filesystem::directory_iterator(word))
                if (entry.is_regular_file()) paths.push_back(entry.path());
            std::sort(paths.begin(), paths.end());
            for (const auto& path : paths) corpus.push_back(read(path));
        } else if (std::filesystem::is_regular_file(word)) {
            corpus.push_back(read(word));
        } else {
            std::fprintf(stderr, "no such file: %s\n", word.c_str());
            return 66;
        }
    }
    std::signal(SIGABRT, save_input);
    for (const Bytes& input : corpus) run(input);
    Mutator mutator(seed, bytes_max);
    for (uint64_t i = 0; i < runs; ++i) run(mutator.next(corpus));
    std::printf("%zu corpus inputs and %llu mutations\n",
                corpus.size(),
                static_cast<unsigned long long>(runs));
    return 0;
}
