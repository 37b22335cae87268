#include "engine/plan/slots.h"

#include <algorithm>
#include <cstddef>

#include "engine/base/assert.h"

namespace strata {

namespace {

// Slots of one kind. take() prefers the free slot that fits best, else enlarges the largest one.
class SlotPool {
  public:
    explicit SlotPool(std::vector<uint64_t>& sizes) : sizes_(sizes) {}

    SlotId take(uint64_t elements) {
        size_t best = free_.size();
        for (size_t i = 0; i < free_.size(); ++i) {
            if (best == free_.size() ||
                is_better(sizes_[free_[i]], sizes_[free_[best]], elements)) {
                best = i;
            }
        }
        if (best == free_.size()) {
            sizes_.push_back(elements);
            return static_cast<SlotId>(sizes_.size() - 1);
        }
        const SlotId slot = free_[best];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
        sizes_[slot] = std::max(sizes_[slot], elements);
        return slot;
    }

    void give_back(SlotId slot) { free_.push_back(slot); }

  private:
    static bool is_better(uint64_t size, uint64_t than, uint64_t elements) {
        const bool fits = size >= elements;
        const bool than_fits = than >= elements;
        if (fits != than_fits) {
            return fits;
        }
        return fits ? size < than : size > than;
    }

    std::vector<uint64_t>& sizes_;
    std::vector<SlotId> free_;
};

// Values of one kind (f32 or quantised): where each is used last, and its slot while it lives.
struct Lifetimes {
    explicit Lifetimes(size_t count) : last(count, -1), slot(count, kNoSlot) {}
    std::vector<std::ptrdiff_t> last;
    std::vector<SlotId> slot;
};

}  // namespace

void assign_slots(StepPlan& step,
                  const Graph& graph,
                  const std::vector<Value>& quant_values,
                  bool keeps_hidden) {
    const auto elements_of = [&](const Value& value) {
        const uint64_t rows = value.gathered ? step.gather_rows : step.rows;
        return rows * value.per_row * value.width + value.fixed;
    };
    Lifetimes f32(graph.values.size());
    Lifetimes quant(quant_values.size());
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const auto index = static_cast<std::ptrdiff_t>(i);
        for (const uint32_t id :
             {step.ops[i].x, step.ops[i].y, step.ops[i].out, step.ops[i].routing}) {
            if (id != kNoSlot) {
                f32.last[id] = index;
            }
        }
        if (step.ops[i].quant != kNoSlot) {
            quant.last[step.ops[i].quant] = index;
        }
    }

    SlotPool slots(step.slots);
    SlotPool quant_slots(step.quant_slots);
    const auto take_kept = [&](ValueId id) {
        f32.slot[id] = slots.take(elements_of(graph.values[id]));
        f32.last[id] = static_cast<std::ptrdiff_t>(step.ops.size());  // never given back
        return f32.slot[id];
    };
    step.logits = take_kept(graph.logits);
    if (keeps_hidden) {
        step.hidden = take_kept(graph.hidden);
    }
    for (const Node& node : graph.nodes) {
        if (node.kind == NodeKind::Input) {
            step.input = slots.take(elements_of(graph.values[node.out]));
            f32.slot[node.out] = step.input;
        }
    }

    for (size_t i = 0; i < step.ops.size(); ++i) {
        PlannedOp& op = step.ops[i];
        const PlannedOp values = op;
        const bool writes_quant =
            op.request.kind == OpKind::Quantize || op.request.kind == OpKind::RmsNormQuantize;
        for (const SlotId id : {op.out, op.routing}) {
            if (id != kNoSlot && f32.slot[id] == kNoSlot) {
                f32.slot[id] = slots.take(elements_of(graph.values[id]));
            }
        }
        if (writes_quant) {
            quant.slot[op.quant] = quant_slots.take(elements_of(quant_values[op.quant]));
        }
        for (SlotId* operand : {&op.x, &op.y, &op.out, &op.routing}) {
            if (*operand != kNoSlot) {
                *operand = f32.slot[*operand];
                STRATA_ASSERT(*operand != kNoSlot, "a value is read before it is written");
            }
        }
        if (op.quant != kNoSlot) {
            op.quant = quant.slot[op.quant];
            STRATA_ASSERT(op.quant != kNoSlot, "a quantised value is read before it is written");
        }
        const auto release = [&](uint32_t id, Lifetimes& lives, SlotPool& pool) {
            if (id != kNoSlot && lives.last[id] == static_cast<std::ptrdiff_t>(i)) {
                pool.give_back(lives.slot[id]);
                lives.last[id] = -1;  // operands may name one value twice
            }
        };
        release(values.x, f32, slots);
        release(values.y, f32, slots);
        release(values.out, f32, slots);
        release(values.routing, f32, slots);
        release(values.quant, quant, quant_slots);
    }
}

}  // namespace strata
