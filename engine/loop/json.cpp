#include "engine/loop/json.h"

#include <cmath>
#include <cstdio>

#include "protocol/cpp/msgpack.h"

namespace strata {

namespace {

class Printer {
  public:
    explicit Printer(std::span<const uint8_t> msgpack) : reader_(msgpack) {}

    std::string print() {
        value(0);
        reader_.expect_end();
        return std::move(out_);
    }

  private:
    void value(int depth);
    void items(size_t count, bool has_keys, int depth);
    void text(std::string_view raw);
    void number();
    void new_line(int depth) { out_ += "\n" + std::string(static_cast<size_t>(depth) * 2, ' '); }

    protocol::Reader reader_;
    std::string out_;
};

void Printer::value(int depth) {
    if (depth > protocol::kDepthMax) reader_.fail("nested too deep to print");
    if (reader_.is_map()) return items(reader_.map(), true, depth);
    if (reader_.is_array()) return items(reader_.array(), false, depth);
    if (reader_.is_nil()) {
        reader_.nil();
        out_ += "null";
    } else if (reader_.is_str()) {
        text(reader_.str());
    } else if (reader_.is_boolean()) {
        out_ += reader_.boolean() ? "true" : "false";
    } else {
        number();
    }
}

void Printer::items(size_t count, bool has_keys, int depth) {
    out_ += has_keys ? "{" : "[";
    for (size_t i = 0; i < count; ++i) {
        if (i > 0) out_ += ",";
        new_line(depth + 1);
        if (has_keys) {
            text(reader_.str());
            out_ += ": ";
        }
        value(depth + 1);
    }
    if (count > 0) new_line(depth);
    out_ += has_keys ? "}" : "]";
}

void Printer::number() {
    char digits[32];
    // Integers up to 2^53 print exactly; nothing larger is shown to people.
    const double v = reader_.number();
    const bool is_whole = std::fabs(v) < 9e15 && v == std::floor(v);
    std::snprintf(digits, sizeof digits, is_whole ? "%.0f" : "%.9g", v);
    out_ += std::isfinite(v) ? digits : "null";
}

void Printer::text(std::string_view raw) {
    out_ += '"';
    for (const char c : raw) {
        if (c == '"' || c == '\\') {
            out_ += '\\';
            out_ += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            out_ += escape;
        } else {
            out_ += c;
        }
    }
    out_ += '"';
}

}  // namespace

std::string to_json(std::span<const uint8_t> msgpack) {
    return Printer(msgpack).print();
}

}  // namespace strata
