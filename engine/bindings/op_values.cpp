#include "engine/bindings/op_values.h"

#include <pybind11/stl.h>

#include <optional>

#include "engine/base/error.h"
#include "engine/plan/op_fields.h"

namespace py = pybind11;

namespace strata::bindings {

namespace {

constexpr uint32_t kFeatures[] = {kFeatureRopeNeox,
                                  kFeatureRopeFactors,
                                  kFeatureBias,
                                  kFeatureGrouped,
                                  kFeatureTiledHeads,
                                  kFeatureExpertOrder,
                                  kFeatureExpertScale,
                                  kFeatureGroupGain,
                                  kFeatureDilated,
                                  kFeatureSelected};

OpKind kind_by_name(const std::string& name) {
    for (int i = 0; i < kOpKindCount; ++i) {
        const auto kind = static_cast<OpKind>(i);
        if (name == op_name(kind)) return kind;
    }
    refuse_argument("no operation is named '" + name + "'");
}

uint32_t feature_bits(const std::vector<std::string>& names) {
    uint32_t bits = 0;
    for (const std::string& name : names) {
        uint32_t found = 0;
        for (const uint32_t bit : kFeatures) found |= name == feature_name(bit) ? bit : 0u;
        if (found == 0) refuse_argument("no feature is named '" + name + "'");
        bits |= found;
    }
    return bits;
}

}  // namespace

void refuse_argument(const std::string& text) {
    throw Error(ErrorKind::InvalidRequest, "ops.argument", text);
}

DType type_by_name(const std::string& name) {
    if (const std::optional<DType> type = find_dtype_named(name)) return *type;
    refuse_argument("no type is named '" + name + "'");
}

std::vector<std::string> feature_names(uint32_t bits) {
    std::vector<std::string> names;
    for (const uint32_t bit : kFeatures) {
        if ((bits & bit) != 0) names.emplace_back(feature_name(bit));
    }
    return names;
}

py::dict to_dict(const OpRequest& request) {
    py::dict out;
    out["kind"] = std::string(op_name(request.kind));
    out["weight"] = std::string(dtype_name(request.weight));
    out["act"] = std::string(dtype_name(request.act));
    out["kv"] = std::string(dtype_name(request.kv));
    for (const OpCountField& field : kOpCountFields) {
        out[py::str(field.name.data(), field.name.size())] = request.*field.member;
    }
    out["features"] = feature_names(request.features);
    return out;
}

OpRequest from_dict(const py::dict& fields) {
    OpRequest request;
    for (const auto& [key, value] : fields) {
        const auto name = key.cast<std::string>();
        if (name == "kind") {
            request.kind = kind_by_name(value.cast<std::string>());
        } else if (name == "weight") {
            request.weight = type_by_name(value.cast<std::string>());
        } else if (name == "act") {
            request.act = type_by_name(value.cast<std::string>());
        } else if (name == "kv") {
            request.kv = type_by_name(value.cast<std::string>());
        } else if (name == "features") {
            request.features = feature_bits(value.cast<std::vector<std::string>>());
        } else {
            bool is_known = false;
            for (const OpCountField& field : kOpCountFields) {
                if (name != field.name) continue;
                request.*field.member = value.cast<uint32_t>();
                is_known = true;
            }
            if (!is_known) refuse_argument("a request has no field '" + name + "'");
        }
    }
    return request;
}

}  // namespace strata::bindings
