#include "protocol/cpp/msgpack.h"

#include <bit>
#include <limits>

#include "protocol/cpp/fault.h"
#include "protocol/cpp/utf8.h"

namespace strata::protocol {

// --- writer ---------------------------------------------------------------------------------

void Writer::big_endian(uint64_t value, int bytes) {
    uint8_t text[8];
    for (int i = 0; i < bytes; ++i) text[i] = static_cast<uint8_t>(value >> (8 * (bytes - 1 - i)));
    out_.insert(out_.end(), text, text + bytes);
}

void Writer::unsigned_int(uint64_t value) {
    if (value < 0x80) {
        out_.push_back(static_cast<uint8_t>(value));
    } else if (value <= 0xff) {
        out_.push_back(0xcc);
        big_endian(value, 1);
    } else if (value <= 0xffff) {
        out_.push_back(0xcd);
        big_endian(value, 2);
    } else if (value <= 0xffff'ffff) {
        out_.push_back(0xce);
        big_endian(value, 4);
    } else {
        out_.push_back(0xcf);
        big_endian(value, 8);
    }
}

void Writer::signed_int(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    if (value >= 0) {
        unsigned_int(bits);
    } else if (value >= -32) {
        out_.push_back(static_cast<uint8_t>(bits));
    } else if (value >= std::numeric_limits<int8_t>::min()) {
        out_.push_back(0xd0);
        big_endian(bits, 1);
    } else if (value >= std::numeric_limits<int16_t>::min()) {
        out_.push_back(0xd1);
        big_endian(bits, 2);
    } else if (value >= std::numeric_limits<int32_t>::min()) {
        out_.push_back(0xd2);
        big_endian(bits, 4);
    } else {
        out_.push_back(0xd3);
        big_endian(bits, 8);
    }
}

void Writer::float64(double value) {
    out_.push_back(0xcb);
    big_endian(std::bit_cast<uint64_t>(value), 8);
}

void Writer::str(std::string_view text) {
    if (is_utf8(text)) {
        raw_str(text);
        return;
    }
    std::string clean;
    while (!text.empty()) {
        const size_t length = utf8_char(text);
        if (length == 0)
            clean += "\xef\xbf\xbd";
        else
            clean += text.substr(0, length);
        text.remove_prefix(length == 0 ? 1 : length);
    }
    raw_str(clean);
}

void Writer::raw_str(std::string_view text) {
    const size_t size = text.size();
    if (size < 32) {
        out_.push_back(static_cast<uint8_t>(0xa0 | size));
    } else if (size <= 0xff) {
        out_.push_back(0xd9);
        big_endian(size, 1);
    } else if (size <= 0xffff) {
        out_.push_back(0xda);
        big_endian(size, 2);
    } else {
        out_.push_back(0xdb);
        big_endian(size, 4);
    }
    out_.insert(out_.end(), text.begin(), text.end());
}

void Writer::bin(std::span<const uint8_t> bytes) {
    const size_t size = bytes.size();
    if (size <= 0xff) {
        out_.push_back(0xc4);
        big_endian(size, 1);
    } else if (size <= 0xffff) {
        out_.push_back(0xc5);
        big_endian(size, 2);
    } else {
        out_.push_back(0xc6);
        big_endian(size, 4);
    }
    out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void Writer::array(size_t count) {
    if (count < 16) {
        out_.push_back(static_cast<uint8_t>(0x90 | count));
    } else if (count <= 0xffff) {
        out_.push_back(0xdc);
        big_endian(count, 2);
    } else {
        out_.push_back(0xdd);
        big_endian(count, 4);
    }
}

void Writer::map(size_t count) {
    if (count < 16) {
        out_.push_back(static_cast<uint8_t>(0x80 | count));
    } else if (count <= 0xffff) {
        out_.push_back(0xde);
        big_endian(count, 2);
    } else {
        out_.push_back(0xdf);
        big_endian(count, 4);
    }
}

// --- reader ---------------------------------------------------------------------------------

void Reader::fail(const std::string& what) const {
    throw ProtocolFault(FaultCode::Decode, std::string(where_) + ": " + what);
}

void Reader::wrong_type(const char* expected) const {
    if (data_.empty()) fail(std::string("expected ") + expected + ", but the payload ends");
    static constexpr char kHex[] = "0123456789abcdef";
    const uint8_t got = data_.front();
    fail(std::string("expected ") + expected + ", got type byte 0x" + kHex[got >> 4] +
         kHex[got & 0xf]);
}

uint8_t Reader::byte() {
    const uint8_t value = take(1).front();
    return value;
}

std::span<const uint8_t> Reader::take(uint64_t count) {
    if (count > data_.size())
        fail("needs " + std::to_string(count) + " bytes, but the payload has " +
             std::to_string(data_.size()) + " left");
    const auto head = data_.first(static_cast<size_t>(count));
    data_ = data_.subspan(static_cast<size_t>(count));
    return head;
}

uint64_t Reader::big_endian(int bytes) {
    uint64_t value = 0;
    for (const uint8_t part : take(static_cast<uint64_t>(bytes))) value = value << 8 | part;
    return value;
}

bool Reader::is_map() const {
    if (data_.empty()) return false;
    const uint8_t first = data_.front();
    return (first & 0xf0) == 0x80 || first == 0xde || first == 0xdf;
}

bool Reader::is_array() const {
    if (data_.empty()) return false;
    const uint8_t first = data_.front();
    return (first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd;
}

bool Reader::is_str() const {
    if (data_.empty()) return false;
    const uint8_t first = data_.front();
    return (first & 0xe0) == 0xa0 || (first >= 0xd9 && first <= 0xdb);
}

void Reader::nil() {
    if (!is_nil()) wrong_type("nil");
    byte();
}

bool Reader::boolean() {
    if (data_.empty() || (data_.front() & 0xfe) != 0xc2) wrong_type("a boolean");
    return byte() == 0xc3;
}

Reader::Integer Reader::integer() {
    const uint8_t first = data_.empty() ? 0xc1 : data_.front();
    if (first < 0x80) return {byte(), false};
    if (first >= 0xe0) return {static_cast<uint64_t>(static_cast<int8_t>(byte())), true};
    if (first >= 0xcc && first <= 0xcf) {
        byte();
        return {big_endian(1 << (first - 0xcc)), false};
    }
    if (first >= 0xd0 && first <= 0xd3) {
        byte();
        const int bytes = 1 << (first - 0xd0);
        const int shift = 64 - 8 * bytes;
        // Sign extension: up to the top, then back with the sign.
        const auto value = static_cast<int64_t>(big_endian(bytes) << shift) >> shift;
        return {static_cast<uint64_t>(value), value < 0};
    }
    wrong_type("an integer");
}

uint64_t Reader::unsigned_int(uint64_t max) {
    const Integer value = integer();
    if (value.negative)
        fail("must be in 0.." + std::to_string(max) + ", got " +
             std::to_string(static_cast<int64_t>(value.magnitude)));
    if (value.magnitude > max)
        fail("must be in 0.." + std::to_string(max) + ", got " + std::to_string(value.magnitude));
    return value.magnitude;
}

int64_t Reader::signed_int(int64_t min, int64_t max) {
    const Integer value = integer();
    const auto number = static_cast<int64_t>(value.magnitude);
    const bool too_large = !value.negative && number < 0;
    if (too_large || number < min || number > max)
        fail("must be in " + std::to_string(min) + ".." + std::to_string(max) + ", got " +
             (too_large ? std::to_string(value.magnitude) : std::to_string(number)));
    return number;
}

double Reader::number() {
    const uint8_t first = data_.empty() ? 0xc1 : data_.front();
    if (first == 0xcb) {
        byte();
        return std::bit_cast<double>(big_endian(8));
    }
    if (first == 0xca) {
        byte();
        return std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)));
    }
    const bool is_integer = first < 0x80 || first >= 0xe0 || (first >= 0xcc && first <= 0xd3);
    if (!is_integer) wrong_type("a number");
    const Integer value = integer();
    if (value.negative) return static_cast<double>(static_cast<int64_t>(value.magnitude));
    return static_cast<double>(value.magnitude);
}

std::string_view Reader::key() {
    const uint8_t first = data_.empty() ? 0xc1 : data_.front();
    uint64_t size = 0;
    if ((first & 0xe0) == 0xa0) {
        size = byte() & 0x1f;
    } else if (first >= 0xd9 && first <= 0xdb) {
        byte();
        size = big_endian(1 << (first - 0xd9));
    } else {
        wrong_type("a string");
    }
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view Reader::str() {
    const std::string_view text = key();
    if (!is_utf8(text)) fail("the string is not UTF-8");
    return text;
}

std::span<const uint8_t> Reader::bin() {
    const uint8_t first = data_.empty() ? 0xc1 : data_.front();
    if (first < 0xc4 || first > 0xc6) wrong_type("binary");
    byte();
    return take(big_endian(1 << (first - 0xc4)));
}

size_t Reader::array() {
    if (!is_array()) wrong_type("an array");
    const uint8_t first = byte();
    const uint64_t count = first < 0xa0 ? first & 0xfu : big_endian(first == 0xdc ? 2 : 4);
    if (count > data_.size())
        fail("an array of " + std::to_string(count) + " values cannot fit in the " +
             std::to_string(data_.size()) + " bytes that are left");
    return static_cast<size_t>(count);
}

size_t Reader::map() {
    if (!is_map()) wrong_type("a map");
    const uint8_t first = byte();
    const uint64_t count = first < 0x90 ? first & 0xfu : big_endian(first == 0xde ? 2 : 4);
    if (count > data_.size() / 2)
        fail("a map of " + std::to_string(count) + " pairs cannot fit in the " +
             std::to_string(data_.size()) + " bytes that are left");
    return static_cast<size_t>(count);
}

void Reader::skip() {
    skip(0);
}

void Reader::skip(int depth) {
    if (depth >= kDepthMax)
        fail("values are nested deeper than " + std::to_string(kDepthMax) + " levels");
    if (is_array() || is_map()) {
        const size_t values = is_array() ? array() : 2 * map();
        for (size_t i = 0; i < values; ++i) skip(depth + 1);
        return;
    }
    if (data_.empty()) wrong_type("a value");
    const uint8_t first = data_.front();
    if ((first & 0xe0) == 0xa0 || (first >= 0xd9 && first <= 0xdb)) {
        byte();
        take(first < 0xc0 ? first & 0x1fu : big_endian(1 << (first - 0xd9)));
        return;
    }
    if (first < 0x80 || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) {
        byte();
    } else if (first >= 0xc4 && first <= 0xc6) {
        bin();
    } else if (first >= 0xc7 && first <= 0xc9) {  // ext: length, type, data
        byte();
        take(big_endian(1 << (first - 0xc7)) + 1);
    } else if (first >= 0xca && first <= 0xd3) {
        number();
    } else if (first >= 0xd4 && first <= 0xd8) {  // fixext: type, 1 .. 16 bytes
        byte();
        take(1 + (uint64_t{1} << (first - 0xd4)));
    } else {
        wrong_type("a value");
    }
}

void Reader::expect_end() {
    if (!data_.empty()) fail(std::to_string(data_.size()) + " bytes follow the end of the message");
}

}  // namespace strata::protocol
