// Philox4x32-10, the counter-based random function of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011). A draw is a pure function of (seed, choice,
// position): no state to save, so a resumed request goes on with the same numbers.
#pragma once

#include <array>
#include <cstdint>

namespace strata {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Ten rounds over one counter block.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
    constexpr uint64_t kMultiply0 = 0xD2511F53;
    constexpr uint64_t kMultiply1 = 0xCD9E8D57;
    constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
    constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = kMultiply0 * counter[0];
        const uint64_t product1 = kMultiply1 * counter[2];
        counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<uint32_t>(product1),
                   static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<uint32_t>(product0)};
        key = {key[0] + kWeyl0, key[1] + kWeyl1};
    }
    return counter;
}

// The uniform number in [0, 1) that chooses output token `position` of choice `choice`:
// counter = (position, choice, 0, 0), key = seed (low word first); the first two words of the
// result are the high and low half of 64 bits, of which the top 53 are the fraction.
constexpr double philox_uniform(uint64_t seed, uint32_t choice, uint32_t position) {
    const PhiloxCounter bits = philox4x32(
        {position, choice, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t whole = uint64_t{bits[0]} << 32 | bits[1];
    return static_cast<double>(whole >> 11) * 0x1p-53;
}

}  // namespace strata
