// SPDX-License-Identifier: Apache-2.0
// <headrace/topology.hpp>
#include <headrace/topology.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

#include <string>
#include <vector>

namespace headrace::python {
namespace {

template <class T>
nb::list list_of(const std::vector<T>& values) {
  nb::list list;
  for (const T& value : values) list.append(nb::cast(value));
  return list;
}

/// Both texts of a value: str() is that of C++, repr() names the type.
template <class T>
void def_texts(nb::class_<T>& type, const char* name) {
  type.def("__str__", [](const T& self) { return to_str(to_text(self)); });
  type.def("__repr__",
           [name](const T& self) { return to_str("<" + std::string(name) + ": " + to_text(self) + ">"); });
}

void bind_nic(nb::module_& module) {
  nb::class_<TopologyNic> nic(module, "TopologyNic",
                              "A network card: an RDMA device with its interfaces, or an interface alone.");
  nic.def_prop_ro(
         "name", [](const TopologyNic& self) { return to_str(self.name); },
         "Of the RDMA device (\"mlx5_0\"), else of the interface (\"eth0\").")
      .def_prop_ro(
          "interfaces", [](const TopologyNic& self) { return to_strs(self.interfaces); },
          nb::sig("def interfaces(self) -> list[str]"), "The network interfaces on it.")
      .def_ro("rdma", &TopologyNic::rdma, "Whether it is an RDMA device.")
      .def_prop_ro(
          "link_layer", [](const TopologyNic& self) { return to_str(self.link_layer); },
          "\"Ethernet\", \"InfiniBand\"; empty: unknown.")
      .def_ro("speed_mbit", &TopologyNic::speed_mbit, "Mbit/s of all its ports that are up; 0: unknown.")
      .def_ro("up", &TopologyNic::up, "Whether a port has a link; None: unknown.")
      .def_prop_ro(
          "pci", [](const TopologyNic& self) { return to_str(self.pci); },
          "\"0000:1a:00.0\"; empty: no PCI device.")
      .def_prop_ro(
          "model", [](const TopologyNic& self) { return to_str(self.model); },
          "PCI vendor and device, \"15b3:1021\"; empty: unknown.")
      .def_prop_ro(
          "driver", [](const TopologyNic& self) { return to_str(self.driver); },
          "\"mlx5_core\"; empty: unknown.")
      .def_ro("numa_node", &TopologyNic::numa_node, "Its NUMA node; None: unknown.")
      .def_prop_ro(
          "nearness", [](const TopologyNic& self) { return to_str(nearness_name(self.nearness)); },
          "The nearest thing that it has in common with its group's GPU or NUMA node: \"pci_switch\",\n"
          "\"host_bridge\", \"numa_node\", \"machine\" or \"unknown\".");
  def_texts(nic, "TopologyNic");
}

void bind_gpu(nb::module_& module) {
  nb::class_<TopologyGpu>(module, "TopologyGpu", "A GPU of a group.")
      .def_prop_ro(
          "pci", [](const TopologyGpu& self) { return to_str(self.pci); }, "\"0000:1b:00.0\".")
      .def_ro("index", &TopologyGpu::index,
              "That of CUDA and torch in this process; None: the driver was not asked.")
      .def_prop_ro(
          "name", [](const TopologyGpu& self) { return to_str(self.name); },
          "\"NVIDIA H200\"; empty: the driver was not asked.")
      .def("__repr__", [](const TopologyGpu& self) {
        return nb::str("TopologyGpu(pci={!r}, index={!r}, name={!r})")
            .format(to_str(self.pci), nb::cast(self.index), to_str(self.name));
      });
}

void bind_groups(nb::module_& module) {
  nb::class_<TopologyGroup> group(
      module, "TopologyGroup",
      "A GPU and what is near it; or, without a GPU, a NUMA node and what is near that.");
  group.def_ro("gpu", &TopologyGroup::gpu, "The GPU; None: the group is a NUMA node.")
      .def_ro("numa_node", &TopologyGroup::numa_node, "The NUMA node; None: unknown.")
      .def_prop_ro(
          "cpus", [](const TopologyGroup& self) { return list_of(self.cpus); },
          nb::sig("def cpus(self) -> list[int]"),
          "The CPUs of the node that this process may use; all that it may use if none.")
      .def_prop_ro(
          "own_cpus", [](const TopologyGroup& self) { return list_of(self.own_cpus); },
          nb::sig("def own_cpus(self) -> list[int]"),
          "The part of `cpus` that no other GPU of the node has, for threads of this group: whole cores.\n"
          "Where there are fewer cores than GPUs it is `cpus`.")
      .def_prop_ro(
          "nics", [](const TopologyGroup& self) { return list_of(self.nics); },
          nb::sig("def nics(self) -> list[TopologyNic]"),
          "By kind (RDMA devices first), nearness and PCI address. Several groups may have the same one.");
  def_texts(group, "TopologyGroup");

  nb::class_<LeftOutNic>(module, "LeftOutNic", "A network card that no group has.")
      .def_ro("nic", &LeftOutNic::nic, "The card.")
      .def_prop_ro(
          "reason", [](const LeftOutNic& self) { return to_str(self.reason); },
          "A sentence: its link is down, it is of another model than the others, ...")
      .def("__repr__", [](const LeftOutNic& self) {
        return nb::str("<LeftOutNic: {}: {}>").format(to_str(to_text(self.nic)), to_str(self.reason));
      });
}

}  // namespace

void bind_topology(nb::module_& module) {
  bind_nic(module);
  bind_gpu(module);
  bind_groups(module);
  nb::class_<DetectedTopology> topology(module, "DetectedTopology",
                                        "The groups of a machine, and the network cards that no group has.");
  topology
      .def_prop_ro(
          "groups", [](const DetectedTopology& self) { return list_of(self.groups); },
          nb::sig("def groups(self) -> list[TopologyGroup]"),
          "GPUs by index (else by PCI address), then nodes without a GPU.")
      .def_prop_ro(
          "left_out", [](const DetectedTopology& self) { return list_of(self.left_out); },
          nb::sig("def left_out(self) -> list[LeftOutNic]"), "By name.")
      .def(
          "__str__", [](const DetectedTopology& self) { return to_str(to_text(self)); },
          "A line for each group, and one for each card that is left out.");
  module.def(
      "detect_topology",
      [](std::string root, bool ask_driver) {
        return without_gil([&] { return detect_topology({std::move(root), ask_driver}); });
      },
      nb::kw_only(), nb::arg("root") = nb::str(""), nb::arg("ask_driver") = true,
      nb::sig("def detect_topology(*, root: str = \"\", ask_driver: bool = True) -> DetectedTopology"),
      "Reads which network cards and CPUs are near each GPU, and near each NUMA node without one.\n\n"
      "The network cards of a PCI switch are dealt to its GPUs in turn. More GPUs than cards share them. A "
      "GPU\n"
      "without a card in its switch or on its root complex takes those of its NUMA node; without one there,\n"
      "those of the machine. RDMA devices and plain interfaces are dealt by themselves. Cards of another "
      "model\n"
      "than most of their kind, and those without a link, are left out.\n"
      "root: the folder of a recorded machine, in which its sys/, proc/ and dev/ lie; empty: this machine.\n"
      "ask_driver: asks the CUDA driver which GPUs this process sees, and for their indices. That starts "
      "the\n"
      "driver: a child that is forked later cannot use CUDA.\n"
      "Errors: none; what cannot be read is unknown.");
}

}  // namespace headrace::python
