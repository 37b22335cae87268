#include "engine/backend/weights.h"

#include <algorithm>
#include <utility>

#include "engine/quant/dequantize.h"

namespace strata {

namespace {

constexpr uint64_t kPortionBytes = uint64_t{8} << 20;

WeightView file_view(const TensorFiles& files, const TensorSlice& slice) {
    const gguf::TensorInfo& tensor = files.tensor(slice);
    const std::span<const std::byte> bytes = files.bytes(slice);
    return {bytes.data(),
            bytes.size(),
            tensor.type,
            slice.rows,
            static_cast<uint32_t>(tensor.shape[0]),
            slice.experts,
            files.expert_bytes(slice)};
}

// Tiles of all experts of a weight, one expert's after another's.
struct PackJob {
    const PackedWeight* item;
    const WeightView* from;
    std::byte* to;
    uint32_t tiles;  // of one expert
    uint32_t first_tile;
};

void pack_tiles(void* context, uint32_t begin, uint32_t end, uint32_t /*thread*/) {
    const PackJob& job = *static_cast<const PackJob*>(context);
    const uint32_t last = job.first_tile + end;
    for (uint32_t tile = job.first_tile + begin; tile < last;) {
        const uint32_t expert = tile / job.tiles;
        const uint32_t first = expert * job.tiles;
        const uint32_t stop = std::min(last, first + job.tiles);
        WeightView from = *job.from;
        from.data += expert * from.expert_bytes;
        job.item->packing->pack(
            from, job.to + expert * job.item->expert_bytes, {tile - first, stop - first});
        tile = stop;
    }
}

}  // namespace

Weights::Weights(const Model& model,
                 const Drafter* drafter,
                 WeightPlan plan,
                 ThreadPool& pool,
                 const LoadProgress& progress)
    : files_(drafter ? drafter->files() : model.files()),
      plan_(std::move(plan)),
      packed_(plan_.packed_bytes, "packed weights"),
      vectors_((plan_.vector_elements + rope_table_elements(model.hparams()) +
                (drafter ? rope_table_elements(drafter->hparams()) : 0)) *
                   sizeof(float),
               "norms and biases") {
    packed_.advise_large_pages();
    for (const TensorSlice& table : plan_.on_demand) {
        const std::span<const std::byte> bytes = files_.bytes(table);
        advise_random_reads(bytes.data(), bytes.size());
    }
    pack_all(pool, progress);
    load_vectors();
    float* const tables = reinterpret_cast<float*>(vectors_.data()) + plan_.vector_elements;
    rope_ = tables;
    float* const end = load_rope(model.hparams(), model.graph().rope_factors, tables);
    if (drafter) {
        draft_rope_ = end;
        load_rope(drafter->hparams(), drafter->graph().rope_factors, end);
    }
}

void Weights::pack_all(ThreadPool& pool, const LoadProgress& progress) {
    uint64_t done = 0;
    progress("pack", done, plan_.packed_source_bytes);
    for (const PackedWeight& item : plan_.packed) {
        const WeightView from = file_view(files_, item.slice);
        const uint32_t tile_rows = item.packing->tile_rows;
        const uint64_t bytes = files_.rows_bytes(item.slice);
        const uint32_t expert_tiles = (from.n + tile_rows - 1) / tile_rows;
        const uint32_t tiles = expert_tiles * from.experts;
        const uint64_t tile_bytes = std::max<uint64_t>(1, bytes / tiles);
        const auto portion =
            static_cast<uint32_t>(std::clamp<uint64_t>(kPortionBytes / tile_bytes, 1, tiles));
        for (uint32_t first = 0; first < tiles; first += std::min(portion, tiles - first)) {
            const uint32_t count = std::min(portion, tiles - first);
            PackJob job{&item, &from, packed_.data() + item.offset, expert_tiles, first};
            pool.run(count, std::max(1u, count / (pool.size() * 4)), pack_tiles, &job);
            const uint64_t packed_part = bytes * (first + count) / tiles;
            progress("pack", done + packed_part, plan_.packed_source_bytes);
        }
        done += bytes;
        if (!plan_.is_mapped[item.slice.file][item.slice.tensor]) {
            release_mapped_pages(from.data, from.bytes);
        }
    }
}

void Weights::load_vectors() {
    auto* const values = reinterpret_cast<float*>(vectors_.data());
    for (const VectorWeight& item : plan_.vectors) {
        const std::span<const std::byte> bytes = files_.bytes(item.slice);
        dequantize_row(
            files_.tensor(item.slice).type, bytes.data(), values + item.offset, item.slice.rows);
    }
}

// Returns where the next table goes.
float* Weights::load_rope(const Hparams& hparams, const TensorSlice& factors, float* to) const {
    std::vector<double> frequencies = rope_frequencies(hparams);
    if (factors.is_present()) {
        std::vector<float> divisors(factors.rows);
        dequantize_row(files_.tensor(factors).type,
                       files_.bytes(factors).data(),
                       divisors.data(),
                       factors.rows);
        for (size_t i = 0; i < frequencies.size(); ++i) {
            frequencies[i] /= static_cast<double>(divisors[i]);
        }
    }
    frequencies.push_back(hparams.rope_scaling.magnitude);
    return std::transform(frequencies.begin(), frequencies.end(), to, [](double value) {
        return static_cast<float>(value);
    });
}

WeightView Weights::view(const TensorSlice& slice, uint32_t packed) const {
    if (!slice.is_present()) {
        return {};
    }
    WeightView view = file_view(files_, slice);
    if (packed != kNoTensor) {
        view.data = packed_.data() + plan_.packed[packed].offset;
        view.bytes = plan_.packed[packed].bytes;
        view.expert_bytes = plan_.packed[packed].expert_bytes;
    }
    return view;
}

const float* Weights::vector(uint32_t index) const {
    return index == kNoTensor
               ? nullptr
               : reinterpret_cast<const float*>(vectors_.data()) + plan_.vectors[index].offset;
}

}  // namespace strata
