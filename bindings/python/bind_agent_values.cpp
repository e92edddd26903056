// SPDX-License-Identifier: Apache-2.0
// <headrace/agent.hpp>: the values that an agent returns.
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/text.hpp"

namespace headrace::python {
namespace {

constexpr const char* incarnation_doc = "The peer's incarnation: a random number, new at each start.";

}  // namespace

void bind_agent_values(nb::module_& module) {
  nb::class_<ImportReport>(module, "ImportReport", "The result of an import of metadata.")
      .def_prop_ro(
          "peer", [](const ImportReport& self) { return to_str(self.peer); }, "The name of the peer.")
      .def_ro("incarnation", &ImportReport::incarnation, incarnation_doc)
      .def_ro("version", &ImportReport::version, "The version of the peer's metadata after the import.")
      .def_ro("regions", &ImportReport::regions, "The number of regions of this peer that are known now.")
      .def_ro("restarted", &ImportReport::restarted,
              "Whether the peer has restarted: requests and lists of its earlier incarnation raise PeerLost.")
      .def_ro("left_out", &ImportReport::left_out,
              "The number of regions that were not taken, because the peer has revoked them since.")
      .def_prop_ro(
          "note", [](const ImportReport& self) { return to_str(self.note); },
          "Says in a sentence what was not taken; empty: all was taken.")
      .def("__repr__", [](const ImportReport& self) {
        return nb::str("ImportReport(peer={!r}, incarnation={}, version={}, regions={}, restarted={})")
            .format(to_str(self.peer), self.incarnation, self.version, self.regions, self.restarted);
      });

  nb::class_<PeerInfo>(module, "PeerInfo", "What this agent knows of a peer.")
      .def_prop_ro(
          "name", [](const PeerInfo& self) { return to_str(self.name); }, "The peer's name.")
      .def_ro("incarnation", &PeerInfo::incarnation, incarnation_doc)
      .def_ro("version", &PeerInfo::version, "The version of its metadata.")
      .def_ro("regions", &PeerInfo::regions, "The number of its regions that are known.")
      .def_ro("connected", &PeerInfo::connected, "Whether a link to it is ready.")
      .def_ro("lost", &PeerInfo::lost, "Whether it died, left or cannot be reached.")
      .def_prop_ro(
          "backends", [](const PeerInfo& self) { return to_strs(self.backends); },
          nb::sig("def backends(self) -> list[str]"),
          "The backends that both agents have, and those that have a link.")
      .def_prop_ro(
          "detail", [](const PeerInfo& self) { return to_str(self.detail); },
          "Why it was lost, or the state of each backend.")
      .def("__repr__", [](const PeerInfo& self) {
        return nb::str(
                   "PeerInfo(name={!r}, incarnation={}, version={}, regions={}, connected={}, lost={}, "
                   "backends={})")
            .format(to_str(self.name), self.incarnation, self.version, self.regions, self.connected,
                    self.lost, to_strs(self.backends));
      });

  nb::class_<OptionInfo>(module, "OptionInfo", "An option and its current value.")
      .def_prop_ro(
          "name", [](const OptionInfo& self) { return to_str(self.name); },
          "\"check\"; \"tcp.sockets\" for an option of a backend.")
      .def_prop_ro(
          "default_value", [](const OptionInfo& self) { return to_str(self.default_value); },
          "The value if the option is not set.")
      .def_prop_ro(
          "value", [](const OptionInfo& self) { return to_str(self.value); },
          "The current value; \"(set)\" for a secret.")
      .def_prop_ro(
          "unit", [](const OptionInfo& self) { return to_str(self.unit); }, "The unit of the value.")
      .def_prop_ro(
          "sentence", [](const OptionInfo& self) { return to_str(self.sentence); }, "What the option does.")
      .def_prop_ro(
          "source", [](const OptionInfo& self) { return to_str(self.source); },
          "Where the value comes from: \"default\", \"file\", \"environment\" or \"caller\".")
      .def("__repr__", [](const OptionInfo& self) {
        return nb::str("OptionInfo(name={!r}, value={!r}, source={!r})")
            .format(to_str(self.name), to_str(self.value), to_str(self.source));
      });

  nb::class_<BackendInfo>(module, "BackendInfo",
                          "A backend that was found: its abilities, or why it did not load.")
      .def_prop_ro(
          "name", [](const BackendInfo& self) { return to_str(self.name); }, "\"shm\", \"tcp\", ...")
      .def_prop_ro(
          "version", [](const BackendInfo& self) { return to_str(self.version); }, "The backend's version.")
      .def_prop_ro(
          "path", [](const BackendInfo& self) { return to_str(self.path); },
          "The shared object, or \"linked in\".")
      .def_ro("loaded", &BackendInfo::loaded, "Whether it can be used.")
      .def_prop_ro(
          "refusal", [](const BackendInfo& self) { return to_str(self.refusal); },
          "Why it did not load, and what to do; empty if it loaded.")
      .def_prop_ro(
          "kinds",
          [](const BackendInfo& self) {
            nb::list kinds;
            for (const MemoryKind kind : self.kinds) kinds.append(to_str(kind_name(kind)));
            return kinds;
          },
          nb::sig("def kinds(self) -> list[str]"), "The kinds of memory that it takes.")
      .def_ro("local", &BackendInfo::local, "Whether it moves pages inside one agent.")
      .def_ro("remote", &BackendInfo::remote, "Whether it moves pages between agents.")
      .def_ro("notifications", &BackendInfo::notifications, "Whether it carries notifications.")
      .def_ro("mapping", &BackendInfo::mapping, "Whether Agent.map can use it.")
      .def_ro("query", &BackendInfo::query, "Whether Agent.query can ask it.")
      .def_prop_ro(
          "ports", [](const BackendInfo& self) { return to_strs(self.ports); },
          nb::sig("def ports(self) -> list[str]"),
          "In Agent.backends: the addresses on which this agent's instance listens, as in \"[::]:40213\".")
      .def_prop_ro(
          "options", [](const BackendInfo& self) { return to_list(self.options); },
          nb::sig("def options(self) -> list[OptionInfo]"), "The options of the backend.")
      .def("__repr__", [](const BackendInfo& self) {
        return nb::str("BackendInfo(name={!r}, version={!r}, loaded={}, refusal={!r})")
            .format(to_str(self.name), to_str(self.version), self.loaded, to_str(self.refusal));
      });
}

}  // namespace headrace::python
