// What a backend brings to the loop: its name, its kernels, and loaded models. One implementation
// per engine program, built by its main.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/host.h"
#include "engine/backend/kernel.h"
#include "engine/backend/registry.h"
#include "engine/backend/runtime.h"
#include "engine/backend/weights.h"
#include "engine/model/model.h"
#include "engine/plan/mode.h"

namespace strata {

struct Loaded {
    std::unique_ptr<Runtime> runtime;
    std::vector<MemoryPart> memory;
    std::optional<Reason> unlocked;  // why memory is not locked although the plan has mlock
};

class Backend {
  public:
    virtual ~Backend() = default;

    virtual std::string name() const = 0;    // "cpu"
    virtual std::string device() const = 0;  // the device by its real name
    virtual const HostFacts& host() const = 0;
    virtual DeviceFacts device_facts() const = 0;          // of device()
    virtual std::vector<KernelEntry> kernels() const = 0;  // in order of preference

    // Loads the model for `plan`; once in the life of the backend. `model` and `registry` outlive
    // the result, the backend does too. Throws Error where plan or memory do not allow it.
    virtual Loaded load(const Model& model,
                        const ModePlan& plan,
                        const Registry& registry,
                        const LoadProgress& progress) = 0;
};

}  // namespace strata
