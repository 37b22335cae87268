// What a registry can do, asked request by request: every operation with every element type for
// each of its operands, each set of its feature bits, and the ways in which rows share a step.
// Reports and generated documents come from it; nothing here decides what runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend/registry.h"

namespace strata {

// How the rows of a step belong to sequences.
enum class StepShape : uint8_t { OneRow, ManyRows, ManySequences };
inline constexpr StepShape kStepShapes[] = {
    StepShape::OneRow, StepShape::ManyRows, StepShape::ManySequences};
std::string_view step_shape_name(StepShape shape);  // "one_row", "many_rows", "many_sequences"

struct SurveyAnswer {
    OpRequest request;
    StepShape shape = StepShape::OneRow;
    const KernelEntry* kernel = nullptr;  // of the registry, which outlives the answer
    std::vector<Reason> reasons;          // not empty where there is no kernel
    bool is_fused = false;                // plans do without where there is no kernel
};

// Answers by operation, weight, activation, KV type, features, step shape, in this order; the three
// shapes of one request are neighbours. Sizes are those of a typical model (a width of 512, heads
// of 64, pages of kPageTokens): a model's own are answered by planning for its file.
std::vector<SurveyAnswer> survey(const Registry& registry);

// A request in short, without sizes: "matmul weight=q4_1 act=i8block +bias".
std::string describe_types(const OpRequest& request);

// All element types, as the survey asks for them: those of files, then I8Block.
std::vector<DType> surveyed_types();

// All operations, in their order.
std::vector<OpKind> surveyed_ops();

}  // namespace strata
