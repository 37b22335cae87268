// The Python module strata_engine_testing: the engine's parts for tests and tools, not for serving.
// Each bind_*.cpp adds its own; this file lists them and turns strata::Error into a Python
// exception with its kind and code.
#include <pybind11/pybind11.h>

#include "engine/base/error.h"

namespace py = pybind11;

void bind_drafter(py::module_& m);
void bind_gguf(py::module_& m);
void bind_model(py::module_& m);
void bind_plan(py::module_& m);
void bind_ops(py::module_& m);
void bind_protocol(py::module_& m);
void bind_sampler(py::module_& m);

namespace {

// Kinds by the names that they have on the wire (protocol/strata_protocol, ErrorKind).
const char* kind_name(strata::ErrorKind kind) {
    switch (kind) {
        case strata::ErrorKind::InvalidRequest:
            return "invalid_request";
        case strata::ErrorKind::Unsupported:
            return "unsupported";
        case strata::ErrorKind::Overloaded:
            return "overloaded";
        case strata::ErrorKind::Cancelled:
            return "cancelled";
        case strata::ErrorKind::NumericFault:
            return "numeric_fault";
        case strata::ErrorKind::DeviceLost:
            return "device_lost";
        case strata::ErrorKind::OutOfMemory:
            return "out_of_memory";
        case strata::ErrorKind::Internal:
            return "internal";
    }
    return "internal";
}

}  // namespace

PYBIND11_MODULE(strata_engine_testing, m) {
    m.doc() = "Parts of the Strata engine, for tests and tools.";
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> engine_error;
    engine_error.call_once_and_store_result([&] {
        py::object type = py::exception<strata::Error>(m, "EngineError");
        type.attr("__doc__") = "A fault the engine reports: .kind, .code and the text.";
        return type;
    });
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            std::rethrow_exception(pointer);
        } catch (const strata::Error& error) {
            const py::object& type = engine_error.get_stored();
            py::object value = type(error.what());
            value.attr("kind") = kind_name(error.kind());
            value.attr("code") = error.code();
            PyErr_SetObject(type.ptr(), value.ptr());
        }
    });
    bind_gguf(m);
    bind_plan(m);
    bind_drafter(m);
    bind_model(m);
    bind_ops(m);
    bind_protocol(m);
    bind_sampler(m);
}
