// SPDX-License-Identifier: Apache-2.0
// The section "peers and metadata" of <headrace/agent.hpp>.
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/memory_handles.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

ExportOptions export_options(nb::handle regions, bool connection_info, std::uint64_t since_version) {
  ExportOptions options;
  options.connection_info = connection_info;
  options.since_version = since_version;
  if (!regions.is_none()) {
    options.regions = to_region_ids(regions);
    options.regions_none = options.regions.empty();
  }
  return options;
}

nb::list peer_regions(PyAgent& self, std::string_view peer) {
  nb::list list;
  for (Region& region : self.ask([&](headrace::Agent& agent) { return agent.peer_regions(peer); }))
    list.append(nb::cast(PyRegion{std::move(region)}));
  return list;
}

std::string_view event_name(PeerEvent::Kind kind) {
  switch (kind) {
    case PeerEvent::Kind::joined:
      return "joined";
    case PeerEvent::Kind::updated:
      return "updated";
    case PeerEvent::Kind::left:
      break;
  }
  return "left";
}

void watch_namespace(PyAgent& self, nb::object callback) {
  check_callback(callback);
  auto callable = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  std::function<void(const PeerEvent&)> event;
  if (callable) {
    event = [callable](const PeerEvent& e) {
      call_back(*callable, [&] { return nb::make_tuple(to_str(event_name(e.kind)), to_str(e.peer)); });
    };
  }
  self.ask([&](headrace::Agent& agent) { return agent.watch_namespace(std::move(event)); });
  self.namespace_callback = std::move(callable);
  free_laid_aside();
}

}  // namespace

void bind_agent_metadata(nb::class_<PyAgent>& agent) {
  agent
      .def(
          "export_metadata",
          [](PyAgent& self, nb::handle regions, bool connection_info, std::uint64_t since_version) {
            const ExportOptions options = export_options(regions, connection_info, since_version);
            return to_bytes(self.ask([&](headrace::Agent& a) { return a.export_metadata(options); }));
          },
          nb::arg("regions") = nb::none(), nb::arg("connection_info") = true, nb::arg("since_version") = 0,
          nb::sig("def export_metadata(self, regions: collections.abc.Sequence[Region | Memory | int] | None "
                  "= None, connection_info: bool = True, since_version: int = 0) -> bytes"),
          "Returns the metadata of this agent, for import_metadata of a peer.\n\n"
          "regions: only these; []: no regions; None: all regions.\n"
          "connection_info: include the addresses of this agent; later exports may leave them out.\n"
          "since_version: only what changed after this metadata_version; 0: everything.\n"
          "Errors: NotFound (a region), InvalidArgument (a version that does not exist yet).")
      .def_prop_ro(
          "metadata_version",
          [](PyAgent& self) { return self.call([](headrace::Agent& a) { return a.metadata_version(); }); },
          "Rises with each registration and deregistration.")
      .def(
          "import_metadata",
          [](PyAgent& self, nb::handle metadata) {
            const std::string bytes = from_bytes(metadata, "the metadata");
            return self.ask([&](headrace::Agent& a) { return a.import_metadata(bytes); });
          },
          nb::arg("metadata"), nb::sig("def import_metadata(self, metadata: bytes) -> ImportReport"),
          "Imports the result of a peer's export_metadata.\n\n"
          "Whole exports and parts come in any order; an update needs the version that it starts from, and\n"
          "a request needs the connection information, which any of them may have.\n"
          "Errors: Corrupt (the text says where), InvalidArgument (metadata of this agent; another\n"
          "protocol version).")
      .def_prop_ro(
          "listen_address",
          [](PyAgent& self) {
            return to_str(self.call([](headrace::Agent& a) { return a.listen_address(); }));
          },
          "The address for metadata queries, as \"127.0.0.1:40213\"; empty if the agent does not listen.")
      .def(
          "fetch_metadata",
          [](PyAgent& self, const std::string& address, const Seconds& timeout, const std::string& label) {
            const Timeout time = to_timeout(timeout);
            return self.ask([&](headrace::Agent& a) { return a.fetch_metadata(address, time, label); });
          },
          nb::arg("address"), nb::arg("timeout") = ten_seconds, nb::arg("label") = "",
          nb::sig("def fetch_metadata(self, address: str, timeout: float | None = 10.0, label: str = '') -> "
                  "ImportReport"),
          "Asks the agent that listens at \"host:port\" for its metadata and imports it.\n\n"
          "timeout: seconds. label: empty; only stores have labels.\n"
          "Errors: PeerLost (no agent answers there), TimedOut, Corrupt, InvalidArgument (address).")
      .def(
          "send_metadata",
          [](PyAgent& self, const std::string& address, nb::handle regions, bool connection_info,
             std::uint64_t since_version, const Seconds& timeout) {
            const ExportOptions options = export_options(regions, connection_info, since_version);
            const Timeout time = to_timeout(timeout);
            self.ask([&](headrace::Agent& a) { return a.send_metadata(address, options, time); });
          },
          nb::arg("address"), nb::arg("regions") = nb::none(), nb::arg("connection_info") = true,
          nb::arg("since_version") = 0, nb::arg("timeout") = ten_seconds,
          nb::sig("def send_metadata(self, address: str, regions: collections.abc.Sequence[Region | Memory | "
                  "int] | None = None, connection_info: bool = True, since_version: int = 0, timeout: float "
                  "| None = 10.0) -> None"),
          "Sends the metadata of this agent to the agent that listens at \"host:port\".\n\n"
          "regions, connection_info, since_version: as in export_metadata. timeout: seconds.\n"
          "Errors: PeerLost (no agent answers there), TimedOut, InvalidArgument (address).")
      .def(
          "publish",
          [](PyAgent& self, nb::handle regions, bool connection_info, const std::string& label) {
            const ExportOptions options = export_options(regions, connection_info, 0);
            self.ask([&](headrace::Agent& a) { return a.publish(options, label); });
          },
          nb::arg("regions") = nb::none(), nb::arg("connection_info") = true, nb::arg("label") = "",
          nb::sig("def publish(self, regions: collections.abc.Sequence[Region | Memory | int] | None = None, "
                  "connection_info: bool = True, label: str = '') -> None"),
          "Publishes this agent's metadata in the store, again after each change of its regions.\n\n"
          "The entry has a lease that ends with the agent. regions, connection_info: as in\n"
          "export_metadata. label: names one of several entries of an agent.\n"
          "Errors: InvalidArgument (the agent has no store), BackendFailed (the store).")
      .def(
          "unpublish", [](PyAgent& self) { self.ask([](headrace::Agent& a) { return a.unpublish(); }); },
          "Removes the metadata of this agent from the store.")
      .def(
          "find",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const std::string& label) {
            const Timeout time = to_timeout(timeout);
            return self.ask([&](headrace::Agent& a) { return a.find(peer, time, label); });
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("label") = "",
          nb::sig("def find(self, peer: str, timeout: float | None = 10.0, label: str = '') -> ImportReport"),
          "Looks up a peer in the store by name and imports its metadata.\n\n"
          "timeout: seconds. label: as the peer gave it to publish.\n"
          "Errors: NotFound (no agent of that name), TimedOut, InvalidArgument (the agent has no store).")
      .def(
          "list_namespace",
          [](PyAgent& self, const Seconds& timeout) {
            const Timeout time = to_timeout(timeout);
            return to_strs(self.ask([&](headrace::Agent& a) { return a.list_namespace(time); }));
          },
          nb::arg("timeout") = ten_seconds,
          nb::sig("def list_namespace(self, timeout: float | None = 10.0) -> list[str]"),
          "The names of the agents in the store's namespace.")
      .def("watch_namespace", &watch_namespace, nb::arg("callback").none(),
           nb::sig("def watch_namespace(self, callback: collections.abc.Callable[[str, str], object] | None) "
                   "-> None"),
           "Calls callback(event, peer) for every change in the store's namespace; None ends this.\n\n"
           "event: \"joined\", \"updated\" or \"left\". A new callback replaces the earlier one.\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.\n"
           "Errors: InvalidArgument (the agent has no store).")
      .def(
          "peers",
          [](PyAgent& self) { return to_list(self.call([](headrace::Agent& a) { return a.peers(); })); },
          nb::sig("def peers(self) -> list[PeerInfo]"),
          "The peers whose metadata this agent has, and those that have connected to it.\n\n"
          "A peer stays until it is forgotten: `lost` says that it died or left, `detail` why.")
      .def(
          "peer_regions", [](PyAgent& self, const std::string& peer) { return peer_regions(self, peer); },
          nb::arg("peer"), nb::sig("def peer_regions(self, peer: str) -> list[Region]"),
          "The known regions of a peer.\n\n"
          "Errors: NotFound (peer).")
      .def(
          "peer_region",
          [](PyAgent& self, const std::string& peer, const std::string& name) {
            return PyRegion{self.ask([&](headrace::Agent& a) { return a.peer_region(peer, name); })};
          },
          nb::arg("peer"), nb::arg("region_name"),
          "A peer's region, by its name.\n\n"
          "Errors: NotFound (peer, name).")
      .def(
          "connect",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const Names& backends) {
            const Timeout time = to_timeout(timeout);
            const std::vector<std::string> names = to_names(backends);
            take_uninterrupted(self.call(
                [&](headrace::Agent& a) { return a.connect(peer, time, names, interrupted_by_signal); }));
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("backends") = nb::none(),
          "Connects to a peer before the first request, and waits until the link is ready.\n\n"
          "timeout: seconds. backends: only these; None: all that both have.\n"
          "Errors: NotFound, PeerLost, TimedOut, NotSupported.")
      .def(
          "forget",
          [](PyAgent& self, const std::string& peer) {
            self.ask([&](headrace::Agent& a) { return a.forget(peer); });
          },
          nb::arg("peer"),
          "Cancels the requests in flight with a peer, closes its links and drops its metadata.\n\n"
          "Errors: NotFound.");
}

}  // namespace headrace::python
