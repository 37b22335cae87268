// Python view of the GGUF reader: files and, to hand it broken ones quickly, bytes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/printable.h"
#include "engine/base/sha256.h"
#include "engine/gguf/file.h"

namespace py = pybind11;

namespace {

using strata::gguf::File;
using strata::gguf::FileBytes;
using strata::gguf::TensorInfo;

std::span<const std::byte> as_bytes(const py::bytes& bytes) {
    const std::string_view view = bytes;
    return std::as_bytes(std::span(view.data(), view.size()));
}

// A file and, when it was parsed from bytes, what keeps them alive.
class GgufFile {
  public:
    GgufFile(const std::string& path, const std::string& companion)
        : file_(File::open_with(path, companion)) {}
    GgufFile(std::vector<std::pair<py::bytes, std::string>> parts)
        : bytes_(std::move(parts)), file_(File::parse(files(bytes_))) {}

    const File& file() const { return file_; }

  private:
    static std::vector<FileBytes> files(const std::vector<std::pair<py::bytes, std::string>>& in) {
        std::vector<FileBytes> out;
        for (const auto& [bytes, path] : in) out.push_back({as_bytes(bytes), path});
        return out;
    }

    std::vector<std::pair<py::bytes, std::string>> bytes_;
    File file_;
};

py::dict tensor_dict(const TensorInfo& tensor) {
    py::dict out;
    out["name"] = tensor.name;
    out["ggml_type"] = tensor.ggml_type;
    out["type"] = tensor.type == strata::DType::None
                      ? py::object(py::none())
                      : py::object(py::str(std::string(strata::dtype_name(tensor.type))));
    out["shape"] =
        std::vector<uint64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.dimensions);
    out["part"] = tensor.part;
    out["offset"] = tensor.offset;
    out["bytes"] = tensor.bytes;
    return out;
}

py::list tensors(const GgufFile& self) {
    py::list out;
    for (const TensorInfo& tensor : self.file().tensors()) out.append(tensor_dict(tensor));
    return out;
}

std::vector<std::string> part_paths(const GgufFile& self) {
    std::vector<std::string> out;
    for (uint32_t part = 0; part < self.file().parts(); ++part)
        out.push_back(self.file().part_path(part));
    return out;
}

py::object tensor_bytes(const GgufFile& self, const std::string& name) {
    const TensorInfo* tensor = self.file().find_tensor(name);
    if (tensor == nullptr) return py::none();
    const std::span<const std::byte> bytes = self.file().tensor_bytes(*tensor);
    return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<std::vector<py::bytes>> find_string_array(const GgufFile& self,
                                                        const std::string& key) {
    const auto strings = self.file().find_string_array(key);
    if (!strings) return std::nullopt;
    std::vector<py::bytes> out;
    for (const std::string_view text : *strings) out.emplace_back(text.data(), text.size());
    return out;
}

}  // namespace

void bind_gguf(py::module_& m) {
    using py::arg;
    using Self = const GgufFile&;
    using Key = const std::string&;
    py::class_<GgufFile>(m, "GgufFile")
        .def(py::init<const std::string&, const std::string&>(), arg("path"), arg("companion") = "")
        .def_static(
            "parse",
            [](py::bytes bytes, const std::string& path) {
                std::vector<std::pair<py::bytes, std::string>> parts;
                parts.emplace_back(std::move(bytes), path);
                return std::make_unique<GgufFile>(std::move(parts));
            },
            arg("bytes"),
            arg("path") = "bytes")
        .def_static(
            "parse_parts",
            [](std::vector<std::pair<py::bytes, std::string>> parts) {
                return std::make_unique<GgufFile>(std::move(parts));
            },
            arg("parts"),
            "All parts of a split model in order, as (bytes, path); at least one.")
        .def_property_readonly("parts", &part_paths)
        .def_property_readonly("file_bytes", [](Self self) { return self.file().file_bytes(); })
        .def_property_readonly("tensors", &tensors)
        .def("tensor_bytes", &tensor_bytes, arg("name"), "Bytes of a tensor, None when absent.")
        .def("header_sha256", [](Self self) { return self.file().header_sha256(); })
        .def("has", [](Self self, Key key) { return self.file().has(key); })
        .def("find_uint", [](Self self, Key key) { return self.file().find_uint(key); })
        .def("find_float", [](Self self, Key key) { return self.file().find_float(key); })
        .def("find_bool", [](Self self, Key key) { return self.file().find_bool(key); })
        .def("find_string", [](Self self, Key key) { return self.file().find_string(key); })
        .def("find_uint_array", [](Self self, Key key) { return self.file().find_uint_array(key); })
        .def("find_string_array", &find_string_array, "A list of bytes, None when absent.")
        .def("find_array_length",
             [](Self self, Key key) { return self.file().find_array_length(key); });
    m.def(
        "sha256_hex",
        [](const py::bytes& bytes) { return strata::sha256_hex(as_bytes(bytes)); },
        arg("bytes"));
    m.def(
        "printable",
        [](const py::bytes& text, size_t bytes_max) {
            return strata::printable(std::string_view(text), bytes_max);
        },
        arg("text"),
        arg("bytes_max") = 200);
    m.def(
        "is_utf8",
        [](const py::bytes& text) { return strata::is_utf8(std::string_view(text)); },
        arg("text"));
}
