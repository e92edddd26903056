// SPDX-License-Identifier: Apache-2.0
// Communicators that are made without a meeting place: of ranks that are left, or of ranks that the caller
// has brought together.
#include "bindings/python/binding.hpp"
#include "bindings/python/comm_call.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace headrace::python {
namespace {

SplitOptions changes_of(const Hints& hints, const TimeLimit& timeout, const TimeLimit& meeting_timeout) {
  SplitOptions changes;
  changes.hints = to_options(hints);
  changes.timeout = limit_of_call(timeout);
  changes.meeting_timeout = limit_of_call(meeting_timeout);
  return changes;
}

nb::object object_of(headrace::Comm comm) {
  return nb::cast(new PyComm(std::move(comm)), nb::rv_policy::take_ownership);
}

nb::object reconfigure(const PyComm& self, const std::string& uuid, const std::vector<nb::bytes>& handles,
                       const Hints& hints, const TimeLimit& timeout, const TimeLimit& meeting_timeout) {
  const SplitOptions changes = changes_of(hints, timeout, meeting_timeout);
  std::vector<std::string> texts;
  texts.reserve(handles.size());
  for (const nb::bytes& handle : handles) texts.emplace_back(handle.c_str(), handle.size());
  return object_of(self.ask([&](headrace::Comm& comm) { return comm.reconfigure(uuid, texts, changes); }));
}

nb::object shrink(const PyComm& self, const std::vector<int>& excluded, const Hints& hints,
                  const TimeLimit& timeout, const TimeLimit& meeting_timeout) {
  const SplitOptions changes = changes_of(hints, timeout, meeting_timeout);
  nb::object rest = object_of(self.ask([&](headrace::Comm& comm) { return comm.shrink(excluded, changes); }));
  self.left = true;
  return rest;
}

}  // namespace

void bind_comm_groups(nb::class_<PyComm>& comm) {
  comm.def(
          "_capsule", [](const PyComm& self) { return nb::capsule(&self.comm(), "headrace.Comm"); },
          nb::sig("def _capsule(self) -> object"),
          "The headrace::Comm, for extension modules that are built with this one. It lives as long as this\n"
          "object.")
      .def(
          "get_init_handle",
          [](const PyComm& self) {
            const std::string handle = self.ask([](headrace::Comm& comm) { return comm.init_handle(); });
            return nb::bytes(handle.data(), handle.size());
          },
          "This rank as reconfigure takes it, for the caller to bring to all ranks. Over nccl, and over\n"
          "tables, it serves one reconfigure.")
      .def(
          "reconfigure", &reconfigure, nb::arg("uuid"), nb::arg("init_handles"),
          nb::arg("hints") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("meeting_timeout") = nb::none(),
          nb::sig("def reconfigure(self, uuid: str, init_handles: collections.abc.Sequence[bytes], hints: "
                  "dict[str, typing.Any] | None = None, timeout: float | datetime.timedelta | None = None, "
                  "meeting_timeout: float | datetime.timedelta | None = None) -> Comm"),
          "Makes a communicator of the ranks behind these handles, in this order.\n\n"
          "Each of them calls it with the same uuid and handles, on the communicator that its handle is of:\n"
          "one of several ranks, or of itself alone, as newcomers have. That one stays as it is. After a\n"
          "failure all ranks call it again, with another uuid.\n"
          "hints, timeout: of the new communicator, instead of those of this one.\n"
          "meeting_timeout: until all ranks have come; None: that of this one.\n"
          "Errors: InvalidArgument (a handle that is none, or is there twice; this rank's is missing),\n"
          "TimedOut (which ranks have not come), PeerLost (which rank).")
      .def(
          "shrink", &shrink, nb::arg("ranks_to_exclude"), nb::arg("hints") = nb::none(),
          nb::arg("timeout") = nb::none(), nb::arg("meeting_timeout") = nb::none(),
          nb::sig("def shrink(self, ranks_to_exclude: collections.abc.Sequence[int], hints: dict[str, "
                  "typing.Any] | None = None, timeout: float | datetime.timedelta | None = None, "
                  "meeting_timeout: float | datetime.timedelta | None = None) -> Comm"),
          "Makes a communicator of all ranks but some, which died or are to go.\n\n"
          "All that stay call it with the same ranks. This communicator is aborted if it has not ended, and "
          "the\n"
          "end of its with statement raises nothing then. The others keep their order; get_ranks of the new\n"
          "one tells what they were.\n"
          "Errors: InvalidArgument (a rank that does not exist, is there twice, or is this one), TimedOut "
          "and\n"
          "PeerLost as reconfigure: call it again without that rank.");
}

}  // namespace headrace::python
