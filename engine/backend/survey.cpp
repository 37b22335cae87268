#include "engine/backend/survey.h"

#include <iterator>
#include <utility>

#include "engine/base/assert.h"
#include "engine/plan/mode.h"

namespace strata {
namespace {

constexpr uint32_t kRows = 256;
constexpr uint32_t kSequences = 8;

// Operands of an operation whose type varies, and the feature bits that mean something to it.
struct Operands {
    OpKind kind;
    bool has_weight;
    bool has_act;
    bool has_kv;
    uint32_t features;
    bool is_fused = false;
};
constexpr Operands kOperands[] = {
    {OpKind::Embed, true, false, false, 0},
    {OpKind::RmsNorm, false, false, false, kFeatureGrouped | kFeatureGroupGain},
    {OpKind::RmsNormQuantize, false, false, false, kFeatureGrouped | kFeatureGroupGain, true},
    {OpKind::Quantize, false, false, false, 0},
    {OpKind::Matmul, true, true, false, kFeatureBias},
    {OpKind::Rope,
     false,
     false,
     false,
     kFeatureRopeNeox | kFeatureRopeFactors | kFeatureRopeMagnitude},
    {OpKind::KvAppend, false, false, true, 0},
    {OpKind::Attention, false, false, true, kFeatureSelected},
    {OpKind::SwiGlu, false, false, false, 0},
    {OpKind::Add, false, false, false, 0},
    {OpKind::Concat, false, false, false, 0},
    {OpKind::GatherRows, false, false, false, 0},
    {OpKind::Slice, false, false, false, 0},
    {OpKind::SigmoidGate, false, false, false, 0},
    {OpKind::ShortConv, true, false, false, kFeatureDilated},
    {OpKind::L2Norm, false, false, false, 0},
    {OpKind::DeltaGates, false, false, false, 0},
    {OpKind::DeltaRule, false, false, false, kFeatureTiledHeads},
    {OpKind::Route, false, false, false, 0},
    {OpKind::GroupExperts, false, false, false, 0},
    {OpKind::ExpertMatmul, true, true, false, kFeatureExpertOrder | kFeatureExpertScale},
    {OpKind::ExpertSum, false, false, false, 0},
    {OpKind::GatedAdd, false, false, false, 0},
    {OpKind::StreamSpread, false, false, false, 0},
    {OpKind::Silu, false, false, false, 0},
    {OpKind::StreamMix, false, false, false, 0},
    {OpKind::StreamAdd, false, false, false, 0},
    {OpKind::StreamScores, false, false, false, 0},
    {OpKind::StreamScale, false, false, false, 0},
    {OpKind::IndexAppend, false, false, true, 0},
    {OpKind::IndexBlocks,
     false,
     false,
     true,
     kFeatureRopeNeox | kFeatureRopeFactors | kFeatureRopeMagnitude},
    {OpKind::SelectTokens, false, false, true, 0},
    {OpKind::NgramRows, false, false, false, 0},
    {OpKind::FetchRows, true, false, false, 0},
    {OpKind::TableRows, true, false, false, 0},
    {OpKind::Scale, false, false, false, 0},
};
static_assert(std::size(kOperands) == kOpKindCount, "every operation is surveyed");

// Widths of operations on streams and of tables.
void size_streams(OpRequest& r) {
    if (r.kind == OpKind::StreamSpread || r.kind == OpKind::StreamScale ||
        r.kind == OpKind::StreamAdd)
        r.n = r.heads * r.k;
    if (r.kind == OpKind::StreamMix) r.n = r.k / r.heads;
    if (r.kind == OpKind::StreamScores) r.n = r.heads;
    if (r.kind == OpKind::IndexAppend || r.kind == OpKind::IndexBlocks) r.k = r.n = r.head_dim;
    if (r.kind == OpKind::NgramRows) r.n = r.heads;
    if (!reads_on_demand(r.kind)) return;
    r.heads = 2;
    r.head_dim = 256;
    r.n = r.heads * r.head_dim;
}

OpRequest typical_request(OpKind kind) {
    OpRequest request;
    request.kind = kind;
    request.n = request.k = 512;
    if (kind == OpKind::Concat) request.n = 2 * request.k;
    request.heads = 8;
    request.kv_heads = 2;
    request.head_dim = request.rope_dims = 64;
    request.page_tokens = kPageTokens;
    request.block_tokens = 4;
    request.blocks_used = 32;
    request.mask_words = 64;
    size_streams(request);
    if (kind == OpKind::ShortConv || kind == OpKind::NgramRows) request.taps = 3;
    if (kind == OpKind::ShortConv) request.dilation = 3;
    request.experts = 8;
    request.experts_used = 2;
    if (kind == OpKind::Route) request.k = request.experts;
    return request;
}

SurveyAnswer ask(const Registry& registry, OpRequest request, StepShape shape) {
    request.rows = shape == StepShape::OneRow ? 1 : kRows;
    request.sequences = shape == StepShape::ManySequences ? kSequences : 1;
    SurveyAnswer answer{std::move(request), shape, nullptr, {}, false};
    auto found = registry.find(answer.request);
    if (auto* refusal = std::get_if<Refusal>(&found)) {
        answer.reasons = std::move(refusal->reasons);
    } else {
        answer.kernel = std::get<const KernelEntry*>(found);
    }
    return answer;
}

void ask_all(const Registry& registry,
             const Operands& operands,
             const std::vector<DType>& types,
             std::vector<SurveyAnswer>& answers) {
    const std::vector<DType> none = {DType::None};
    const std::vector<DType> plain = {DType::F32};
    OpRequest request = typical_request(operands.kind);
    for (const DType weight : operands.has_weight ? types : none) {
        for (const DType act : operands.has_act ? types : plain) {
            for (const DType kv : operands.has_kv ? types : none) {
                // All subsets of the bits, from none to all of them.
                uint32_t features = 0;
                do {
                    request.weight = weight;
                    request.act = act;
                    request.kv = kv;
                    request.features = features;
                    for (const StepShape shape : kStepShapes) {
                        answers.push_back(ask(registry, request, shape));
                        answers.back().is_fused = operands.is_fused;
                    }
                    features = (features - operands.features) & operands.features;
                } while (features != 0);
            }
        }
    }
}

}  // namespace

std::string_view step_shape_name(StepShape shape) {
    constexpr std::string_view kNames[] = {"one_row", "many_rows", "many_sequences"};
    const auto index = static_cast<size_t>(shape);
    STRATA_ASSERT(index < std::size(kNames), "every shape has a name");
    return kNames[index];
}

std::string describe_types(const OpRequest& request) {
    OpRequest types;
    types.kind = request.kind;
    types.weight = request.weight;
    types.act = request.act;
    types.kv = request.kv;
    types.rows = 0;
    types.features = request.features;
    return describe(types);
}

std::vector<DType> surveyed_types() {
    std::vector<DType> types;
    for (uint32_t id = 0; id < static_cast<uint32_t>(DType::I8Block); ++id) {
        if (const auto info = find_dtype(id)) types.push_back(info->type);
    }
    types.push_back(DType::I8Block);
    return types;
}

std::vector<OpKind> surveyed_ops() {
    std::vector<OpKind> ops;
    for (const Operands& operands : kOperands) ops.push_back(operands.kind);
    return ops;
}

std::vector<SurveyAnswer> survey(const Registry& registry) {
    const std::vector<DType> types = surveyed_types();
    std::vector<SurveyAnswer> answers;
    for (const Operands& operands : kOperands) ask_all(registry, operands, types, answers);
    return answers;
}

}  // namespace strata
