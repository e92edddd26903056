// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric.hpp>: peers and groups of them.
#include <headrace/fabric.hpp>

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/time_limit.hpp"

#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

/// Joining connects, so it needs the process of the fabric.
class PyFabricPeers {
 public:
  explicit PyFabricPeers(FabricPeers peers) : peers_(std::move(peers)) {}
  [[nodiscard]] bool is_here() const { return home_.is_here(); }
  [[nodiscard]] const FabricPeers& get() const {
    if (home_.is_here()) return peers_;
    raise_invalid("the peers belong to the parent process: open a fabric in this process, after the fork");
  }

 private:
  HomeProcess home_;
  FabricPeers peers_;
};

void bind_peer(nb::module_& module) {
  nb::class_<FabricPeer>(module, "FabricPeer", "A peer of a fabric, from Fabric.connect.")
      .def_prop_ro("address", &FabricPeer::address, nb::rv_policy::copy, "Its address.")
      .def(
          "__eq__",
          [](const FabricPeer& self, nb::handle other) {
            return nb::isinstance<FabricPeer>(other) &&
                   self.address() == nb::cast<const FabricPeer&>(other).address();
          },
          nb::arg("other"), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const FabricPeer& self) { return nb::hash(to_bytes(self.address().bytes())); })
      .def(
          "__repr__",
          [](const FabricPeer& self) { return nb::str("FabricPeer({!r})").format(nb::cast(self.address())); })
      .def("__reduce__", refuse_pickle("a FabricPeer cannot be pickled: give its address, and connect"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace

void bind_fabric_peers(nb::module_& module) {
  bind_peer(module);
  nb::class_<PyFabricPeers>(module, "FabricPeers",
                            "Peers under one scope of immediates, from Fabric.peer_group. Members join and "
                            "leave while posts run.\n\n"
                            "Threads: any.")
      .def_prop_ro(
          "scope", [](const PyFabricPeers& self) { return self.get().scope(); },
          "The scope of the immediates of a barrier, and of posts that name it.")
      .def_prop_ro(
          "members",
          [](const PyFabricPeers& self) {
            nb::list members;
            for (FabricPeer& peer : self.get().members()) members.append(nb::cast(std::move(peer)));
            return members;
          },
          nb::sig("def members(self) -> list[FabricPeer]"), "The members now.")
      .def("__len__", [](const PyFabricPeers& self) { return self.get().members().size(); })
      .def(
          "join",
          [](const PyFabricPeers& self, const FabricPeer& peer) {
            const FabricPeers& peers = self.get();
            without_gil([&] { peers.join(peer); });
          },
          nb::arg("peer"), "Adds a member. Does nothing for one that is a member.")
      .def(
          "leave", [](const PyFabricPeers& self, const FabricPeer& peer) { take(self.get().leave(peer)); },
          nb::arg("peer"),
          "Later posts to the group do not go to it. Its link stays: Fabric.forget ends that.\n\n"
          "Errors: NotFound (no member).")
      .def("__repr__",
           [](const PyFabricPeers& self) -> nb::str {
             if (!self.is_here()) return nb::str("<FabricPeers: of the parent process>");
             return nb::str("<FabricPeers: scope {}, {} members>")
                 .format(self.get().scope(), self.get().members().size());
           })
      .def("__reduce__", refuse_pickle("FabricPeers cannot be pickled: give their addresses"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_fabric_peer_calls(nb::class_<PyFabric>& fabric) {
  fabric
      .def(
          "connect",
          [](const PyFabric& self, const FabricAddress& address) {
            return self.ask([&](headrace::Fabric& f) { return f.connect(address); });
          },
          nb::arg("address"),
          "Starts to connect, so that the first post finds a link. Posts do it by themselves.\n\n"
          "Errors: NotSupported (none of its network cards is of a kind that this fabric has). Whether it "
          "can be\n"
          "reached is not known yet: posts to it tell.")
      .def(
          "forget",
          [](const PyFabric& self, const FabricPeer& peer) {
            self.ask([&](headrace::Fabric& f) { return f.forget(peer); });
          },
          nb::arg("peer"),
          "Ends the links to a peer: posts to it end with Canceled. A later post connects again.")
      .def(
          "peer_group",
          [](const PyFabric& self, nb::handle scope, const std::vector<FabricAddress>& addresses) {
            const std::uint32_t at = to_u32(scope, "the scope");
            return PyFabricPeers(self.ask([&](headrace::Fabric& f) { return f.peer_group(at, addresses); }));
          },
          nb::arg("scope"), nb::arg("addresses"),
          nb::sig("def peer_group(self, scope: int, addresses: collections.abc.Sequence[FabricAddress]) -> "
                  "FabricPeers"),
          "Connects to all, and makes a group of them.\n\n"
          "scope: of the immediates of `barrier`, and of posts that take it from FabricPeers.scope.")
      .def(
          "barrier",
          [](const PyFabric& self, const PyFabricPeers& peers, nb::handle value, const TimeLimit& timeout) {
            const std::uint32_t told = to_u32(value, "the value of the barrier");
            const FabricPeers& group = peers.get();
            FabricPost post;
            post.timeout = timeout.or_else(std::nullopt);
            return PyFabricWork(self.ask([&](headrace::Fabric& f) { return f.barrier(group, told, post); }));
          },
          nb::arg("peers"), nb::arg("value"), nb::kw_only(), nb::arg("timeout") = nb::none(),
          nb::sig("def barrier(self, peers: FabricPeers, value: int, *, timeout: float | datetime.timedelta "
                  "| None = None) -> "
                  "FabricWork"),
          "Tells every member, and ends when every member has told this fabric with the same value.\n\n"
          "Each member calls it, with the others in its group. Nobody expects (group's scope, value).\n"
          "timeout: seconds or a timedelta, then it ends with TimedOut; None: no limit.");
}

}  // namespace headrace::python
