// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric.hpp>: the values that a fabric takes and returns.
#include <headrace/fabric.hpp>

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

void bind_group_options(nb::module_& module) {
  nb::class_<FabricGroupOptions>(module, "FabricGroupOptions", "A group of a fabric by hand.")
      .def(
          "__init__",
          [](FabricGroupOptions* self, std::vector<Text> nics, std::vector<unsigned> cpus,
             std::optional<int> device) {
            new (self) FabricGroupOptions{to_names(std::move(nics)), std::move(cpus), device};
          },
          nb::arg("nics"), nb::arg("cpus") = nb::make_tuple(), nb::arg("device") = nb::none(),
          nb::sig("def __init__(self, nics: collections.abc.Sequence[str], cpus: "
                  "collections.abc.Sequence[int] = (), device: int | None = None) -> None"),
          "nics: names of network cards or interfaces (\"mlx5_0\", \"eth0\"), or local IP addresses, each\n"
          "once. \"this host\": shared memory, for peers of this user on this host.\n"
          "cpus: of its worker; empty: those near the device.\n"
          "device: the ordinal of the GPU; None: host memory.")
      .def_prop_ro(
          "nics", [](const FabricGroupOptions& self) { return to_strs(self.nics); },
          nb::sig("def nics(self) -> list[str]"), "Its network cards.")
      .def_ro("cpus", &FabricGroupOptions::cpus, "The CPUs of its worker.")
      .def_ro("device", &FabricGroupOptions::device, "The GPU; None: host memory.")
      .def("__repr__", [](const FabricGroupOptions& self) {
        return nb::str("FabricGroupOptions(nics={!r}, cpus={!r}, device={})")
            .format(to_strs(self.nics), nb::cast(self.cpus), nb::cast(self.device));
      });
}

void bind_fabric_groups(nb::module_& module) {
  nb::class_<FabricNic>(module, "FabricNic", "A network card of a group.")
      .def_prop_ro(
          "name", [](const FabricNic& self) { return to_str(self.name); }, "Its name, or its IP address.")
      .def_prop_ro(
          "provider", [](const FabricNic& self) { return to_str(self.provider); },
          "What drives it: \"tcp\", \"shm\"; empty: it is not used.")
      .def_prop_ro(
          "address", [](const FabricNic& self) { return to_str(self.address); }, "Where peers find it.")
      .def_ro("bits_per_second", &FabricNic::bits_per_second, "Its speed; 0: unknown.")
      .def_ro("up", &FabricNic::up, "Whether it works now.")
      .def_prop_ro(
          "why", [](const FabricNic& self) { return to_str(self.why); },
          "Why it is not used, or not up; else empty.")
      .def("__repr__", [](const FabricNic& self) {
        return nb::str(
                   "FabricNic(name={!r}, provider={!r}, address={!r}, bits_per_second={}, up={}, why={!r})")
            .format(to_str(self.name), to_str(self.provider), to_str(self.address), self.bits_per_second,
                    self.up, to_str(self.why));
      });
  nb::class_<FabricGroup>(module, "FabricGroup",
                          "Network cards, the GPU and CPUs near them, and the worker that drives them.")
      .def_ro("device", &FabricGroup::device, "The ordinal of the GPU; None: host memory.")
      .def_ro("cpus", &FabricGroup::cpus, "The CPUs of the worker.")
      .def_prop_ro(
          "nics",
          [](const FabricGroup& self) {
            nb::list nics;
            for (const FabricNic& nic : self.nics) nics.append(nb::cast(nic));
            return nics;
          },
          nb::sig("def nics(self) -> list[FabricNic]"),
          "Those that are used come first; posts are pinned by this place.")
      .def("__repr__", [](const FabricGroup& self) {
        nb::list names;
        for (const FabricNic& nic : self.nics) names.append(to_str(nic.name));
        return nb::str("<FabricGroup: device {}, network cards {!r}>").format(nb::cast(self.device), names);
      });
}

void bind_fabric_counters(nb::module_& module) {
  nb::class_<FabricCounters>(module, "FabricCounters", "Since the fabric was opened.")
      .def_ro("done", &FabricCounters::done, "Posts that are done.")
      .def_ro("failed", &FabricCounters::failed, "Posts that ended with an error, canceled ones among them.")
      .def_ro("arrivals", &FabricCounters::arrivals, "Immediates that were counted.")
      .def_ro("arrivals_lost", &FabricCounters::arrivals_lost,
              "Immediates that nobody expected while the list was full.")
      .def_ro("callbacks_failed", &FabricCounters::callbacks_failed, "Callbacks that raised.")
      .def("__repr__", [](const FabricCounters& self) {
        return nb::str(
                   "FabricCounters(done={}, failed={}, arrivals={}, arrivals_lost={}, "
                   "callbacks_failed={})")
            .format(self.done, self.failed, self.arrivals, self.arrivals_lost, self.callbacks_failed);
      });
}

void bind_target(nb::module_& module) {
  nb::class_<FabricTarget>(module, "FabricTarget", "One target of Fabric.scatter.")
      .def(
          "__init__",
          [](FabricTarget* self, FabricDescriptor target, nb::handle length, nb::handle source_offset,
             nb::handle target_offset) {
            new (self) FabricTarget{std::move(target), to_u64(source_offset, "the source's offset", no_page),
                                    to_u64(target_offset, "the target's offset", no_page),
                                    to_u64(length, "the length", no_page)};
          },
          nb::arg("target"), nb::arg("length_bytes"), nb::arg("source_offset") = 0,
          nb::arg("target_offset") = 0,
          nb::sig("def __init__(self, target: FabricDescriptor, length_bytes: int, source_offset: int = 0, "
                  "target_offset: int = 0) -> None"),
          "length_bytes bytes from byte source_offset of the source on, to byte target_offset of the target\n"
          "and on.")
      .def_ro("target", &FabricTarget::to, "The memory of the peer.")
      .def_ro("length_bytes", &FabricTarget::bytes, "The length.")
      .def_ro("source_offset", &FabricTarget::from_offset, "Where it begins in the source.")
      .def_ro("target_offset", &FabricTarget::to_offset, "Where it begins in the target.")
      .def("__repr__", [](const FabricTarget& self) {
        return nb::str("FabricTarget({!r}, length_bytes={}, source_offset={}, target_offset={})")
            .format(nb::cast(self.to), self.bytes, self.from_offset, self.to_offset);
      });
}

}  // namespace

std::uint32_t to_u32(nb::handle value, const char* what) {
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (number.is_valid()) {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() == nullptr && wide <= UINT32_MAX) return static_cast<std::uint32_t>(wide);
  }
  PyErr_Clear();
  raise_invalid(std::string(what) + " is " + shown(value) + ": give an int of 32 bits, from 0 to 2^32 - 1");
}

void bind_fabric_values(nb::module_& module) {
  bind_group_options(module);
  bind_fabric_groups(module);
  bind_fabric_counters(module);
  bind_target(module);
}

}  // namespace headrace::python
