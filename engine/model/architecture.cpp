#include "engine/model/architecture.h"

#include "engine/base/error.h"

namespace strata {

Architecture llama_architecture();
Architecture qwen3_architecture();
Architecture qwen35_architecture();
Architecture qwen35moe_architecture();
Architecture qwen3moe_architecture();
Architecture qwen3next_architecture();
Architecture qwen4exp_architecture();

const std::vector<Architecture>& architectures() {
    static const std::vector<Architecture> table = {
        llama_architecture(),
        qwen3_architecture(),
        qwen35_architecture(),
        qwen35moe_architecture(),
        qwen3moe_architecture(),
        qwen3next_architecture(),
        qwen4exp_architecture(),
    };
    return table;
}

const Architecture& find_architecture(std::string_view name) {
    std::string supported;
    for (const Architecture& entry : architectures()) {
        if (entry.name == name) {
            return entry;
        }
        supported += (supported.empty() ? "" : ", ") + std::string(entry.name);
    }
    throw Error(ErrorKind::Unsupported,
                "model.architecture",
                "architecture \"" + std::string(name.substr(0, 64)) +
                    "\" is not supported; supported are " + supported);
}

}  // namespace strata
