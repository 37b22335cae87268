// How the field types of the schema go onto the wire and come off it: scalars, strings, lists,
// optionals. messages.cpp (generated) adds an overload of `put` and `take` for each struct; they
// are found by argument-dependent lookup through Writer and Reader.
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "protocol/cpp/msgpack.h"

namespace strata::protocol {

// Bounds narrower than those of the C++ type.
struct Range {
    int64_t min;
    int64_t max;
};

// A list grows by what really arrives; a count alone reserves no more than this many elements.
inline constexpr size_t kReserveMax = 4096;

// --- put ------------------------------------------------------------------------------------

inline void put(Writer& w, std::same_as<bool> auto value) {
    w.boolean(value);
}
inline void put(Writer& w, std::unsigned_integral auto value)
    requires(!std::same_as<decltype(value), bool>)
{
    w.unsigned_int(value);
}
inline void put(Writer& w, std::signed_integral auto value) {
    w.signed_int(value);
}
inline void put(Writer& w, std::same_as<double> auto value) {
    w.float64(value);
}
inline void put(Writer& w, const std::string& value) {
    w.str(value);
}

template <class T>
void put(Writer& w, const std::vector<T>& values) {
    w.array(values.size());
    for (const T& value : values) put(w, value);
}

template <class T>
void put(Writer& w, const std::optional<T>& value) {
    if (value)
        put(w, *value);
    else
        w.nil();
}

// --- take -----------------------------------------------------------------------------------

inline void take(Reader& r, bool& value) {
    value = r.boolean();
}
inline void take(Reader& r, double& value) {
    value = r.number();
}
inline void take(Reader& r, std::string& value) {
    value = r.str();
}

template <std::integral T>
    requires(!std::same_as<T, bool>)
void take(Reader& r, T& value) {
    if constexpr (std::unsigned_integral<T>)
        value = static_cast<T>(r.unsigned_int(std::numeric_limits<T>::max()));
    else
        value = static_cast<T>(
            r.signed_int(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

template <std::integral T>
void take(Reader& r, T& value, Range range) {
    value = static_cast<T>(r.signed_int(range.min, range.max));
}

template <class T, class... Ranges>
void take(Reader& r, std::vector<T>& values, Ranges... range) {
    const size_t count = r.array();
    values.clear();
    values.reserve(std::min(count, kReserveMax));
    for (size_t i = 0; i < count; ++i) take(r, values.emplace_back(), range...);
}

template <class T>
void take(Reader& r, std::optional<T>& value) {
    value.reset();
    if (r.is_nil())
        r.nil();
    else
        take(r, value.emplace());
}

}  // namespace strata::protocol
