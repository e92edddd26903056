// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric_memory.hpp>
#include <headrace/fabric_memory.hpp>

#include "bindings/python/array_view.hpp"
#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

namespace headrace::python {
namespace {

/// Of an address: its bytes, or the text of them.
FabricAddress to_address(nb::handle given) {
  if (PyUnicode_Check(given.ptr()) != 0) return take(FabricAddress::from_text(to_text(given, "the address")));
  return take(FabricAddress::from_bytes(from_bytes(given, "the address")));
}

/// Equality, hash and pickle of a value that is its bytes. Pickle makes it from the bytes alone.
template <class Value>
void def_bytes(nb::class_<Value>& type) {
  type.def(
          "__bytes__", [](const Value& self) { return to_bytes(self.bytes()); }, "For peers, by any way.")
      .def(
          "__eq__",
          [](const Value& self, nb::handle other) {
            return nb::isinstance<Value>(other) && self == nb::cast<const Value&>(other);
          },
          nb::arg("other"), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Value& self) { return nb::hash(to_bytes(self.bytes())); })
      .def(
          "__reduce__",
          [](const Value& self) {
            return nb::make_tuple(nb::type<Value>(), nb::make_tuple(to_bytes(self.bytes())));
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
}

void bind_address(nb::module_& module) {
  nb::class_<FabricAddress> type(
      module, "FabricAddress",
      "Where a fabric is found: its network cards, from Fabric.address. bytes(address), str(address) and\n"
      "pickle give it to peers; it holds no secret.");
  type.def(
          "__init__",
          [](FabricAddress* self, nb::handle data) { new (self) FabricAddress(to_address(data)); },
          nb::arg("data"), nb::sig("def __init__(self, data: bytes | str) -> None"),
          "data: bytes(address) or str(address) of a peer.\n"
          "Errors: Corrupt (damaged or cut), NotSupported (of another version).")
      .def(
          "__str__", [](const FabricAddress& self) { return to_str(self.to_text()); },
          "The bytes in hexadecimal digits.")
      .def("__repr__", [](const FabricAddress& self) {
        return nb::str("FabricAddress({!r})").format(to_str(self.to_text()));
      });
  def_bytes(type);
}

void bind_descriptor(nb::module_& module) {
  nb::class_<FabricDescriptor> type(
      module, "FabricDescriptor",
      "Names memory of a fabric to its peers, from FabricMemory.descriptor. bytes(descriptor) and pickle\n"
      "give it to them: less than 100 bytes with one network card and IPv4.\n\n"
      "A post needs nothing else: the link to the owner is made at the first one. A process that has it can\n"
      "use the memory until it is deregistered.");
  type.def(
          "__init__",
          [](FabricDescriptor* self, nb::handle data) {
            new (self)
                FabricDescriptor(take(FabricDescriptor::from_bytes(from_bytes(data, "the descriptor"))));
          },
          nb::arg("data"), nb::sig("def __init__(self, data: bytes) -> None"),
          "data: bytes(descriptor) of the owner.\n"
          "Errors: Corrupt (damaged or cut), NotSupported (of another version).")
      .def_prop_ro("length_bytes", &FabricDescriptor::length_bytes, "The length of the memory.")
      .def_prop_ro(
          "access", [](const FabricDescriptor& self) { return enum_str(self.access(), access_names); },
          "\"readable\" or \"writable\".")
      .def(
          "__str__", [](const FabricDescriptor& self) { return to_str(self.to_text()); },
          "For people: \"4096 writable bytes at tcp:192.0.2.1:4711/0123456789abcdef\".")
      .def("__repr__", [](const FabricDescriptor& self) {
        return nb::str("<FabricDescriptor: {}>").format(to_str(self.to_text()));
      });
  def_bytes(type);
}

nb::object descriptor_of(const PyFabricMemory& self) {
  FabricDescriptor descriptor = self.memory.descriptor();
  return descriptor ? nb::cast(std::move(descriptor)) : nb::object(nb::none());
}

void bind_memory_handle(nb::module_& module) {
  nb::class_<PyFabricMemory>(
      module, "FabricMemory",
      "Registered memory, from Fabric.register. It stays registered without this object, until\n"
      "Fabric.deregister or the close of the fabric.")
      .def_prop_ro(
          "address", [](const PyFabricMemory& self) { return self.memory.address(); },
          "The address, in this process or in the GPU's memory.")
      .def_prop_ro(
          "length_bytes", [](const PyFabricMemory& self) { return self.memory.length_bytes(); },
          "The length.")
      .def_prop_ro(
          "access", [](const PyFabricMemory& self) { return enum_str(self.memory.access(), access_names); },
          "\"local\", \"readable\" or \"writable\".")
      .def_prop_ro(
          "device", [](const PyFabricMemory& self) { return self.memory.device(); },
          "The ordinal of the GPU; None: host memory.")
      .def_prop_ro(
          "group", [](const PyFabricMemory& self) { return self.memory.group(); },
          "Its place in Fabric.groups(): the network cards that carry its posts.")
      .def_prop_ro("descriptor", &descriptor_of, nb::sig("def descriptor(self) -> FabricDescriptor | None"),
                   "For peers; None if the access is local.")
      .def("__repr__",
           [](const PyFabricMemory& self) {
             const headrace::FabricMemory& m = self.memory;
             return nb::str("FabricMemory(address={:#x}, length_bytes={}, access={!r}, device={}, group={})")
                 .format(m.address(), m.length_bytes(), enum_str(m.access(), access_names),
                         nb::cast(m.device()), m.group());
           })
      .def("__reduce__",
           refuse_pickle("a FabricMemory cannot be pickled: give its `descriptor` to the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace

GivenFabricMemory given_fabric_memory(nb::handle object) {
  if (nb::isinstance<MemoryRange>(object)) return {nb::cast<MemoryRange>(object), nullptr};
  if (PyTuple_Check(object.ptr()) != 0 && PyTuple_Size(object.ptr()) == 2) {
    MemoryRange range;
    range.address = reinterpret_cast<void*>(to_u64(PyTuple_GetItem(object.ptr(), 0), "the address", no_page));
    range.length_bytes = to_u64(PyTuple_GetItem(object.ptr(), 1), "the length", no_page);
    return {range, nullptr};
  }
  auto view = ArrayView::open(object);
  if (view == nullptr)
    raise_invalid(shown(object) +
                  " cannot be registered: give an object with the buffer protocol or DLPack, a tuple "
                  "(address, length) or a MemoryRange");
  view->refuse_objects(no_page);
  if (!view->is_dense())
    raise_invalid("a " + view->described() +
                  " is not contiguous and cannot be registered: register the whole array that it is a view "
                  "of, or a copy");
  MemoryRange range;
  range.kind = view->kind;
  range.address = view->data;
  range.length_bytes = view->length_bytes;
  range.device = view->device;
  range.writable = view->writable;
  return {range, std::move(view)};
}

namespace {

PyFabricMemory register_fabric_memory(PyFabric& self, nb::handle object, const std::string& access,
                                      const std::optional<std::size_t>& group) {
  const FabricAccess wanted = to_enum(access, "the access", access_names);
  static_cast<void>(self.fabric());  // a child is told so first
  GivenFabricMemory given = given_fabric_memory(object);
  return self.register_memory(given.range, std::move(given.keeper), wanted, group);
}

}  // namespace

void bind_fabric_memory(nb::module_& module) {
  bind_address(module);
  bind_descriptor(module);
  bind_memory_handle(module);
  bind_fabric_buffers(module);
}

void bind_fabric_registration(nb::class_<PyFabric>& fabric) {
  fabric
      .def(
          "register", &register_fabric_memory, nb::arg("obj").none(), nb::arg("access") = "local",
          nb::kw_only(), nb::arg("group") = nb::none(),
          nb::sig("def register(self, obj: object, access: str = 'local', *, group: int | None = None) -> "
                  "FabricMemory"),
          "Registers memory with the network cards of a group. Returns a FabricMemory.\n\n"
          "obj: an object with the buffer protocol (bytearray, mmap, NumPy array) or DLPack (torch tensor),\n"
          "a tuple (address, length) or a MemoryRange. An array may have any order of dimensions but no\n"
          "gaps. Read-only objects (bytes) can only be read.\n"
          "access: \"local\": for posts of this fabric alone; \"readable\": peers that have its descriptor\n"
          "read it; \"writable\": and write it.\n"
          "group: a place in groups(); None: that of the memory's GPU, or the first.\n"
          "Owns: the object is kept alive and in place until `deregister` or the close of the fabric. For\n"
          "memory given by address the caller must do this.\n"
          "Errors: InvalidArgument (empty, not contiguous, read-only and \"writable\", a GPU without a\n"
          "group), NotSupported (a network card that cannot reach this kind of memory).")
      .def(
          "deregister", &PyFabric::deregister, nb::arg("memory"),
          "Cancels the posts that use the memory. When it returns, they have ended, and no peer reaches "
          "it.\n"
          "Waits until peers of this host have closed memory of a GPU.\n\n"
          "Errors: NotFound (deregistered already), InvalidArgument (of another fabric), TimedOut (it is\n"
          "deregistered, but a peer has not closed it for ten seconds: the memory should not be freed yet).");
  fabric.attr("register_memory") = fabric.attr("register");
}

}  // namespace headrace::python
