// MessagePack, the part of it that the schema needs: a writer into a reused buffer and a strict
// reader over a span. The writer picks the smallest form of every integer and length and writes
// floats as float64, which is what msgspec does, so both ends produce the same bytes. The reader
// checks every count against the bytes that are left before the caller can allocate for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::protocol {

// Reused from message to message: clear() keeps the capacity, so steady traffic does not allocate.
using Buffer = std::vector<uint8_t>;

// Deepest nesting of a value that nobody reads.
inline constexpr int kDepthMax = 32;

class Writer {
  public:
    explicit Writer(Buffer& out) : out_(out) {}

    void nil() { out_.push_back(0xc0); }
    void boolean(bool value) { out_.push_back(value ? 0xc3 : 0xc2); }
    void unsigned_int(uint64_t value);
    void signed_int(int64_t value);
    void float64(double value);
    // Invalid UTF-8 (a file name, a driver's message) is replaced by U+FFFD: a string of ours must
    // never be what breaks the protocol.
    void str(std::string_view text);
    void bin(std::span<const uint8_t> bytes);
    void array(size_t count);  // header; `count` values follow
    void map(size_t count);    // header; `count` pairs follow

  private:
    void big_endian(uint64_t value, int bytes);
    void raw_str(std::string_view text);

    Buffer& out_;
};

// Every method throws ProtocolFault (FaultCode::Decode) when the next value is of another type,
// out of range or cut off. Views point into the payload.
class Reader {
  public:
    explicit Reader(std::span<const uint8_t> payload) : data_(payload) {}

    // Names what is read next, for error texts; `where` must outlive the reader.
    void at(const char* where) { where_ = where; }

    bool is_nil() const { return !data_.empty() && data_.front() == 0xc0; }
    bool is_map() const;
    bool is_array() const;
    bool is_boolean() const { return !data_.empty() && (data_.front() | 1) == 0xc3; }
    bool is_str() const;

    void nil();
    bool boolean();
    uint64_t unsigned_int(uint64_t max);
    int64_t signed_int(int64_t min, int64_t max);
    double number();  // float32, float64 or any integer
    std::string_view str();
    std::string_view key();  // as str(), but any bytes: what is not known is not read either
    std::span<const uint8_t> bin();
    size_t array();  // count of values, at most the bytes that are left
    size_t map();    // count of pairs, at most half the bytes that are left
    void skip();     // one value of any type, nested at most kDepthMax deep
    void expect_end();

    [[noreturn]] void fail(const std::string& what) const;

  private:
    struct Integer {
        uint64_t magnitude;  // the value, or its bits when negative
        bool negative;
    };
    Integer integer();
    uint8_t byte();
    uint64_t big_endian(int bytes);
    std::span<const uint8_t> take(uint64_t count);
    void skip(int depth);
    [[noreturn]] void wrong_type(const char* expected) const;

    std::span<const uint8_t> data_;
    const char* where_ = "message";
};

}  // namespace strata::protocol
