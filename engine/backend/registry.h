// The only lookup that finds a kernel. Planning asks it whether a request can run and why not;
// the executor asks it for the very kernel to launch. What is not found here does not exist.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/base/error.h"

namespace strata {

// Why no kernel serves a request: one reason for each entry of the kind that came close.
struct Refusal {
    std::vector<Reason> reasons;
};

// `--without-kernel GLOB[:CONDITION]`: the registry behaves as if kernels whose id matches GLOB
// had not been built, or not for requests that meet CONDITION ("sequences>1", "weight=iq4_nl",
// "kv=f16", "rows>=8"; fields of OpRequest with = != < <= > >=).
class KernelMask {
  public:
    // Throws Error{InvalidRequest, "config.without_kernel"} naming the part it cannot read.
    static KernelMask parse(std::string_view text);
    bool hides(std::string_view kernel_id, const OpRequest& request) const;
    bool names(std::string_view kernel_id) const;  // whether GLOB matches, whatever the condition
    const std::string& text() const { return text_; }

  private:
    std::string text_;
    std::string glob_;
    std::function<bool(const OpRequest&)> condition_;  // empty = always
};

class Registry {
  public:
    // Entries in order of preference: the first that matches is taken.
    explicit Registry(std::vector<KernelEntry> entries, std::vector<KernelMask> masks = {});

    std::variant<const KernelEntry*, Refusal> find(const OpRequest& request) const;

    const std::vector<KernelEntry>& entries() const { return entries_; }
    // Masks that name no kernel of this table.
    std::vector<KernelMask> idle_masks() const;

  private:
    std::vector<KernelEntry> entries_;
    std::vector<KernelMask> masks_;
};

}  // namespace strata
