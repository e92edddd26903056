// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric_memory.hpp>: buffers of a pool.
#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/refuse_pickle.hpp"

#include <nanobind/stl/unique_ptr.h>

namespace headrace::python {
namespace {

class PyFabricBuffer {
 public:
  explicit PyFabricBuffer(FabricBuffer buffer) : buffer_(std::make_shared<FabricBuffer>(std::move(buffer))) {}
  ~PyFabricBuffer() {
    without_gil([this] { home_.release(buffer_); });
  }
  PyFabricBuffer(const PyFabricBuffer&) = delete;
  PyFabricBuffer& operator=(const PyFabricBuffer&) = delete;

  [[nodiscard]] const FabricBuffer& buffer() const {
    if (buffer_) return *buffer_;
    raise_invalid("the buffer was given back: take another");
  }
  void release() {
    if (views != 0) {
      PyErr_Format(PyExc_BufferError, "%zd views of the buffer exist: delete them first", views);
      throw nb::python_error();
    }
    without_gil([this] { home_.release(buffer_); });
  }

  Py_ssize_t views = 0;

 private:
  HomeProcess home_;
  std::shared_ptr<FabricBuffer> buffer_;  ///< null: given back
};

int open_view(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto& buffer = *nb::inst_ptr<PyFabricBuffer>(self);
  try {
    const auto bytes = buffer.buffer().bytes();
    const int code =
        PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0, flags);
    if (code == 0) ++buffer.views;
    return code;
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
}

void close_view(PyObject* self, Py_buffer*) noexcept { --nb::inst_ptr<PyFabricBuffer>(self)->views; }

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&open_view)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(&close_view)},
                              {0, nullptr}};

class PyFabricBuffers {
 public:
  explicit PyFabricBuffers(FabricBuffers buffers)
      : buffers_(std::make_shared<FabricBuffers>(std::move(buffers))) {}
  ~PyFabricBuffers() {
    without_gil([this] { home_.release(buffers_); });  // the last one deregisters the memory
  }
  PyFabricBuffers(const PyFabricBuffers&) = delete;
  PyFabricBuffers& operator=(const PyFabricBuffers&) = delete;

  [[nodiscard]] FabricBuffers& buffers() const {
    if (home_.is_here()) return *buffers_;
    raise_invalid("the buffers belong to the parent process: open a fabric in this process, after the fork");
  }

 private:
  HomeProcess home_;
  std::shared_ptr<FabricBuffers> buffers_;
};

}  // namespace

void bind_fabric_buffers(nb::module_& module) {
  nb::class_<PyFabricBuffer>(
      module, "FabricBuffer", nb::type_slots(buffer_slots),
      "A host buffer of a pool, from FabricBuffers.take: memoryview(buffer) and numpy.asarray(buffer) view "
      "its\n"
      "bytes. Its end, `release` or leaving it as a context manager gives it back.")
      .def_prop_ro(
          "memory", [](const PyFabricBuffer& self) { return PyFabricMemory{self.buffer().memory()}; },
          "The memory of the pool, for posts.")
      .def_prop_ro(
          "offset_bytes", [](const PyFabricBuffer& self) { return self.buffer().offset_bytes(); },
          "Where the buffer begins in `memory`.")
      .def("release", &PyFabricBuffer::release,
           "Gives it back now; does nothing the second time.\n\n"
           "Errors: BufferError (views of it exist).")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> FabricBuffer"))
      .def(
          "__exit__", [](PyFabricBuffer& self, nb::handle, nb::handle, nb::handle) { self.release(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"))
      .def("__reduce__", refuse_pickle("a FabricBuffer cannot be pickled: it is memory of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PyFabricBuffers>(module, "FabricBuffers",
                              "Registered host buffers of one size, from Fabric.host_buffers.\n\n"
                              "Owns: the memory lives as long as this object or one of its buffers.\n"
                              "Threads: any.")
      .def(
          "take",
          [](const PyFabricBuffers& self) {
            return std::make_unique<PyFabricBuffer>(python::take(self.buffers().take()));
          },
          "A buffer that nobody has; its content is that of its last use.\n\n"
          "Errors: WouldBlock (all are taken).")
      .def_prop_ro(
          "free", [](const PyFabricBuffers& self) { return self.buffers().free(); },
          "The number of buffers that nobody has.")
      .def_prop_ro(
          "bytes_each", [](const PyFabricBuffers& self) { return self.buffers().bytes_each(); },
          "The length of a buffer.")
      .def("__reduce__", refuse_pickle("FabricBuffers cannot be pickled: they are memory of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_fabric_pool(nb::class_<PyFabric>& fabric) {
  fabric.def(
      "host_buffers",
      [](const PyFabric& self, nb::handle count, nb::handle bytes) {
        const std::uint64_t number = to_u64(count, "the number of buffers", no_page);
        const std::uint64_t each = to_u64(bytes, "the length of a buffer", no_page);
        return std::make_unique<PyFabricBuffers>(
            self.ask([&](headrace::Fabric& f) { return f.host_buffers(number, each); }));
      },
      nb::arg("count"), nb::arg("length_bytes"),
      nb::sig("def host_buffers(self, count: int, length_bytes: int) -> FabricBuffers"),
      "`count` buffers of `length_bytes` each, in registered host memory of the first group.\n\n"
      "Errors: InvalidArgument (none, or empty), Exhausted.");
}

}  // namespace headrace::python
