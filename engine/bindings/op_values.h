// Requests of operations as Python dictionaries.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/op.h"

namespace strata::bindings {

// Throws Error "ops.argument".
[[noreturn]] void refuse_argument(const std::string& text);

DType type_by_name(const std::string& name);
std::vector<std::string> feature_names(uint32_t bits);

// Fields by the names of op_fields.h; names of types, features and the kind as reports have them.
pybind11::dict to_dict(const OpRequest& request);
OpRequest from_dict(const pybind11::dict& fields);

}  // namespace strata::bindings
