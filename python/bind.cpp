// The module deepinfer._deepinfer: backends, exceptions, and the two halves of the binding.
#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "bind_common.h"
#ifdef DEEPINFER_WITH_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace deepinfer::python {
namespace {

/// Set once at import; a queue that is full is the one refusal that a caller answers by waiting.
PyObject* queue_full_error = nullptr;

PyObject* exception_of(StatusCode code) {
    switch (code) {
        case StatusCode::kInvalidArgument:
        case StatusCode::kOutOfRange:
        case StatusCode::kInvalidFile:
            return PyExc_ValueError;
        case StatusCode::kNotFound:
            return PyExc_FileNotFoundError;
        case StatusCode::kUnimplemented:
            return PyExc_NotImplementedError;
        case StatusCode::kQueueFull:
            return queue_full_error;
        default:
            return PyExc_RuntimeError;
    }
}

}  // namespace
}  // namespace deepinfer::python

NB_MODULE(_deepinfer, module) {
    using namespace deepinfer;
    using namespace deepinfer::python;
    nb::set_leak_warnings(false);  // objects of __main__ may outlive the module at exit
    register_ref_backends();
    register_cpu_backend();
#ifdef DEEPINFER_WITH_CUDA
    register_cuda_backend();
#endif
    module.doc() = "deepinfer's engine. Use the package deepinfer; this module is its binding.";
    module.attr("__version__") = DEEPINFER_VERSION;
    nb::object queue_full = nb::steal(
        PyErr_NewExceptionWithDoc("deepinfer.QueueFullError",
                                  "As many requests wait as max_queue allows; try again later.",
                                  PyExc_RuntimeError,
                                  nullptr));
    module.attr("QueueFullError") = queue_full;
    queue_full_error = queue_full.release().ptr();
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const StatusError& e) {
            PyErr_SetString(exception_of(e.status.code()), e.what());
        }
    });
    bind_engine(module);
    bind_text(module);
}
