// SPDX-License-Identifier: Apache-2.0
// <headrace/memory.hpp>
#include <headrace/memory.hpp>

#include "bindings/python/array_interface.hpp"
#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/dlpack_capsule.hpp"
#include "bindings/python/memory_handles.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

namespace headrace::python {
namespace {

int memory_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  const auto& memory = *nb::inst_ptr<PyMemory>(self);
  return PyBuffer_FillInfo(view, self, memory.storage.get(),
                           static_cast<Py_ssize_t>(memory.region.region.length_bytes), 0, flags);
}

/// False, with an exception set, if the CPU cannot use the mapping's addresses.
bool check_cpu(const PyMapping& mapping) noexcept {
  if (mapping.device() < 0) return true;
  PyErr_Format(PyExc_BufferError,
               "the mapping is for the kernels of GPU %d, and the CPU cannot use its addresses: use "
               "torch.from_dlpack",
               mapping.device());
  return false;
}

int mapping_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  const auto& mapping = *nb::inst_ptr<PyMapping>(self);
  if (!check_cpu(mapping)) return -1;
  const auto bytes = mapping.bytes();
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                           mapping.writable() ? 0 : 1, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&memory_buffer)}, {0, nullptr}};
PyType_Slot mapping_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&mapping_buffer)}, {0, nullptr}};

nb::object as_numpy(nb::handle self, const nb::object& dtype, const nb::object& shape) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (shape.is_none()) return numpy.attr("frombuffer")(self, nb::arg("dtype") = dtype);
  return numpy.attr("ndarray")(shape, nb::arg("dtype") = dtype, nb::arg("buffer") = self);
}

nb::object mapping_as_numpy(nb::handle self, const nb::object& dtype, const nb::object& shape) {
  if (!check_cpu(*nb::inst_ptr<PyMapping>(self))) throw nb::python_error();
  return as_numpy(self, dtype, shape);
}

DlDevice dlpack_device(const PyMapping& self) {
  if (self.device() < 0) return {dl_cpu, 0};
  return {dl_cuda, self.device()};
}

nb::object mapping_to_dlpack(const PyMapping& self, const nb::kwargs& how) {
  return dlpack_capsule({.data = self.bytes().data(),
                         .dtype = DType::uint8,
                         .shape = {static_cast<std::int64_t>(self.bytes().size())},
                         .device = dlpack_device(self),
                         .read_only = !self.writable(),
                         .owner = self.share()},
                        how);
}

std::uint64_t address_of(const PyMapping& self) {
  return reinterpret_cast<std::uint64_t>(self.bytes().data());
}

/// For Numba, CuPy and torch. Its user keeps the object, and so the memory.
nb::dict interface_of(const PyMapping& self) {
  if (self.device() < 0) throw nb::attribute_error("the mapping is for the CPU: use its buffer");
  return cuda_array_interface(address_of(self), self.bytes().size(), "|u1", !self.writable());
}

nb::str region_repr(const PyRegion& self) {
  const Region& r = self.region;
  return nb::str("Region(id={}, kind={!r}, address={:#x}, length_bytes={}, name={!r})")
      .format(r.id.value, to_str(kind_name(r.kind)), r.address, r.length_bytes, to_str(r.name));
}

MemoryRange make_range(const std::string& kind, std::uint64_t address, std::size_t length_bytes, int device,
                       int file_descriptor, const std::string& path) {
  MemoryRange range;
  range.kind = take(kind_from_name(kind));
  range.address = reinterpret_cast<void*>(address);
  range.length_bytes = length_bytes;
  range.device = device;
  range.file_descriptor = file_descriptor;
  range.path = path;
  return range;
}

constexpr const char* kind_doc = "\"dram\", \"vram\", \"block\", \"file\" or \"object\".";

// Of Memory.numpy and Mapping.numpy; the last sentence goes on.
constexpr const char* numpy_doc =
    "The memory as a NumPy array, without a copy; imports NumPy.\n\n"
    "Shapes: one dimension with all elements, or `shape`, which may use a part of the memory.\n"
    "Owns: the array keeps the memory in place.\n"
    "Errors: ValueError (too few bytes for dtype and shape, or not a multiple of dtype)";
constexpr const char* numpy_signature =
    "def numpy(self, dtype: object = 'uint8', shape: int | tuple[int, ...] | None = None) -> numpy.ndarray";

}  // namespace

void bind_memory(nb::module_& module) {
  static const std::string memory_numpy_doc = std::string(numpy_doc) + ".";
  static const std::string mapping_numpy_doc =
      std::string(numpy_doc) + ",\nBufferError (the mapping is for a GPU: use torch.from_dlpack).";
  static const std::string mapping_dlpack_doc =
      std::string(dlpack_doc) +
      "\n\n"
      "torch ignores that memory is read-only: do not write to a tensor of a read-only mapping.\n"
      "Errors: BufferError (the mapping is read-only, and the importer does not know DLPack version\n"
      "1).";
  nb::class_<MemoryRange>(
      module, "MemoryRange",
      "Memory, a file or an object that is not a Python object: by address, path, descriptor or key.\n\n"
      "dram: address, length_bytes. vram: device (ordinal), address, length_bytes. file, block:\n"
      "path, or an open file_descriptor, which the caller owns. object: path (the key). For file,\n"
      "block and object a length_bytes of 0 means all of it.")
      .def(
          "__init__",
          [](MemoryRange* self, const std::string& kind, std::uint64_t address, std::size_t length_bytes,
             int device, int file_descriptor, const std::string& path) {
            new (self) MemoryRange(make_range(kind, address, length_bytes, device, file_descriptor, path));
          },
          nb::arg("kind") = "dram", nb::arg("address") = 0, nb::arg("length_bytes") = 0,
          nb::arg("device") = -1, nb::arg("file_descriptor") = -1, nb::arg("path") = "",
          "Errors: InvalidArgument (no such kind: dram, vram, block, file, object).")
      .def_prop_ro(
          "kind", [](const MemoryRange& self) { return to_str(kind_name(self.kind)); }, kind_doc)
      .def_prop_ro(
          "address", [](const MemoryRange& self) { return reinterpret_cast<std::uint64_t>(self.address); },
          "The address of the first byte.")
      .def_ro("length_bytes", &MemoryRange::length_bytes,
              "The length in bytes; 0 for a file, block or object: all of it.")
      .def_ro("device", &MemoryRange::device, "The GPU's ordinal, or -1.")
      .def_ro("file_descriptor", &MemoryRange::file_descriptor, "An open descriptor, or -1.")
      .def_prop_ro(
          "path", [](const MemoryRange& self) { return to_str(self.path); },
          "The path of the file or block device, or the object's key.");

  nb::class_<PyRegion>(
      module, "Region",
      "Describes registered memory of this agent or of a peer. A value: it does not keep the memory.")
      .def_prop_ro(
          "id", [](const PyRegion& self) { return self.region.id.value; },
          "Names it within one incarnation of its agent; counts from 1 and is never used twice.")
      .def_prop_ro(
          "kind", [](const PyRegion& self) { return to_str(kind_name(self.region.kind)); }, kind_doc)
      .def_prop_ro(
          "address", [](const PyRegion& self) { return self.region.address; },
          "The owner's address; 0 for files and objects.")
      .def_prop_ro(
          "length_bytes", [](const PyRegion& self) { return self.region.length_bytes; },
          "The length in bytes.")
      .def_prop_ro(
          "name", [](const PyRegion& self) { return to_str(self.region.name); },
          "The region's name, unique in its agent; empty: none.")
      .def_prop_ro(
          "note", [](const PyRegion& self) { return to_bytes(self.region.note); },
          "Bytes that its owner registered with it: dtype and shape, a checksum, ...")
      .def_prop_ro(
          "backends", [](const PyRegion& self) { return to_strs(self.region.backends); },
          nb::sig("def backends(self) -> list[str]"), "The backends that it is registered with.")
      .def_prop_ro(
          "writable", [](const PyRegion& self) { return self.region.writable; },
          "Whether requests may write to it.")
      .def("__len__", [](const PyRegion& self) { return self.region.length_bytes; })
      .def("__repr__", &region_repr)
      .def("__reduce__",
           refuse_pickle("a Region cannot be pickled: send metadata (Agent.export_metadata), or the region's "
                         "name"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PyMemory>(
      module, "Memory", nb::type_slots(memory_slots),
      "Memory from Agent.allocate: registered, with the buffer protocol, zero-filled, page-aligned.\n\n"
      "Owns: the memory stays in place while this object or any view of it lives, also after\n"
      "deregister and the agent's end. The region belongs to the agent until it is deregistered.")
      .def_prop_ro(
          "region", [](const PyMemory& self) { return self.region; }, "Its Region.")
      .def("numpy", &as_numpy, nb::arg("dtype") = "uint8", nb::arg("shape") = nb::none(),
           nb::sig(numpy_signature), memory_numpy_doc.c_str())
      .def("__len__", [](const PyMemory& self) { return self.region.region.length_bytes; })
      .def("__repr__",
           [](const PyMemory& self) { return nb::str("Memory({})").format(region_repr(self.region)); })
      .def("__reduce__",
           refuse_pickle(
               "Memory cannot be pickled: another process reads it with an agent of its own, or maps it "
               "(Agent.map)"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PyMapping>(
      module, "Mapping", nb::type_slots(mapping_slots),
      "A peer's region that is mapped into this process.\n\n"
      "For the CPU it has the buffer protocol; for the kernels of a GPU it has DLPack\n"
      "(torch.from_dlpack(mapping)) and __cuda_array_interface__. Shape: one dimension of uint8.\n"
      "Owns: the mapping stays while this object or any view or tensor of it lives. `alive` becomes\n"
      "False when the peer has revoked the region, left or died. Memory from the peer's allocate\n"
      "then shows old bytes and never faults. GPU memory shows old bytes or new data of its owner:\n"
      "stop using it. The end of a mapping for a GPU waits for the work that is queued on that GPU.\n"
      "During a capture on that GPU it cannot wait; the memory then stays mapped.")
      .def_prop_ro("device", &PyMapping::device,
                   "The ordinal of the GPU whose kernels use the mapping; -1: the CPU.")
      .def_prop_ro("address", &address_of, "The address of the first byte, valid on `device`.")
      .def_prop_ro(
          "writable", &PyMapping::writable,
          "False if its owner allows reading only; its views are then read-only. Kernels can still write to "
          "GPU memory.")
      .def_prop_ro("alive", &PyMapping::alive, "False after the peer has revoked the region, left or died.")
      .def("numpy", &mapping_as_numpy, nb::arg("dtype") = "uint8", nb::arg("shape") = nb::none(),
           nb::sig(numpy_signature), mapping_numpy_doc.c_str())
      .def("__dlpack__", &mapping_to_dlpack, nb::sig(dlpack_signature), mapping_dlpack_doc.c_str())
      .def(
          "__dlpack_device__",
          [](const PyMapping& self) {
            const DlDevice device = dlpack_device(self);
            return nb::make_tuple(device.type, device.index);
          },
          nb::sig(dlpack_device_signature), dlpack_device_doc)
      .def_prop_ro("__cuda_array_interface__", &interface_of,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
                   "Version 3 of the interface, for Numba, CuPy and torch.\n\n"
                   "Errors: AttributeError (the mapping is for the CPU).")
      .def("__len__", [](const PyMapping& self) { return self.bytes().size(); })
      .def("__reduce__", refuse_pickle("a Mapping cannot be pickled: map the region in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
