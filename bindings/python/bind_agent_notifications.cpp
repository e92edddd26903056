// SPDX-License-Identifier: Apache-2.0
// The section "notifications" of <headrace/agent.hpp>.
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

namespace headrace::python {
namespace {

nb::tuple to_tuple(const Notification& notification) {
  return nb::make_tuple(to_str(notification.peer), to_bytes(notification.payload));
}

NotificationFilter to_filter(const std::string& peer, nb::handle prefix) {
  return {peer, from_bytes(prefix, "the prefix")};
}

nb::list take_notifications(PyAgent& self, const std::string& peer, nb::handle prefix) {
  const NotificationFilter filter = to_filter(peer, prefix);
  nb::list list;
  for (const Notification& n :
       self.ask([&](headrace::Agent& agent) { return agent.take_notifications(filter); }))
    list.append(to_tuple(n));
  return list;
}

std::optional<nb::tuple> take_notification(PyAgent& self, const std::string& peer, nb::handle prefix) {
  const NotificationFilter filter = to_filter(peer, prefix);
  const auto taken = self.ask([&](headrace::Agent& agent) { return agent.take_notification(filter); });
  if (!taken) return std::nullopt;
  return to_tuple(*taken);
}

nb::tuple wait_notification(PyAgent& self, const Seconds& timeout, const std::string& peer,
                            nb::handle prefix) {
  const NotificationFilter filter = to_filter(peer, prefix);
  bool waited = false;
  const auto wait = [&](std::chrono::nanoseconds time) {
    // A close() between two slices: this call waited.
    if (waited && self.closed())
      return Result<Notification>(
          Error{Code::canceled, "agent " + self.name() + " was closed while this call waited"});
    waited = true;
    return self.call([&](headrace::Agent& agent) { return agent.wait_notification(time, filter); });
  };
  return to_tuple(take(wait_in_slices(to_timeout(timeout), wait,
                                      [](const auto& got) { return got.code() == Code::timed_out; })));
}

void on_notification(PyAgent& self, nb::object callback) {
  check_callback(callback);
  auto callable = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  std::function<void(Notification)> taken;
  if (callable) {
    taken = [callable](const Notification& n) { call_back(*callable, [&] { return to_tuple(n); }); };
  }
  self.call([&](headrace::Agent& agent) {
    agent.on_notification(std::move(taken));
    return true;
  });
  self.notification_callback = std::move(callable);
  free_laid_aside();
}

}  // namespace

void bind_notification_watch(nb::module_& module) {
  nb::class_<NotificationWatch>(module, "_NotificationWatch",
                                "Tells of notifications that pass a filter; for headrace._asyncio.")
      .def("fileno", &NotificationWatch::fd, "A descriptor that is readable when there may be one.")
      .def("drain", &NotificationWatch::drain, "Makes it unreadable until the next one. Take them after it.");
}

void bind_agent_notifications(nb::class_<PyAgent>& agent) {
  agent
      .def(
          "notify",
          [](PyAgent& self, const std::string& peer, nb::handle payload) {
            const std::string bytes = from_bytes(payload, "the payload");
            self.ask([&](headrace::Agent& a) { return a.notify(peer, bytes); });
          },
          nb::arg("peer"), nb::arg("payload"), nb::sig("def notify(self, peer: str, payload: bytes) -> None"),
          "Sends a notification without a request.\n\n"
          "payload: up to 64 KiB.\n"
          "Errors: WouldBlock (the peer's program has to take some first: retry), NotFound, PeerLost.")
      .def(
          "take_notifications", &take_notifications, nb::arg("peer") = "",
          nb::arg("prefix") = nb::bytes("", 0),
          nb::sig(
              "def take_notifications(self, peer: str = '', prefix: bytes = b'') -> list[tuple[str, bytes]]"),
          "Takes the notifications that have arrived, oldest first, as (peer, payload). Does not wait.\n\n"
          "peer: only notifications of this peer; prefix: only payloads that begin with it; empty: all.")
      .def("wait_notification", &wait_notification, nb::arg("timeout") = nb::none(), nb::arg("peer") = "",
           nb::arg("prefix") = nb::bytes("", 0),
           nb::sig("def wait_notification(self, timeout: float | None = None, peer: str = '', prefix: bytes "
                   "= b'') -> tuple[str, bytes]"),
           "Waits for the next notification. Returns (peer, payload).\n\n"
           "timeout: seconds; None: no limit. peer, prefix: as in take_notifications.\n"
           "Errors: TimedOut, Canceled (the agent was closed).")
      .def("on_notification", &on_notification, nb::arg("callback").none(),
           nb::sig("def on_notification(self, callback: collections.abc.Callable[[str, bytes], object] | "
                   "None) -> None"),
           "Calls callback(peer, payload) for each notification instead of keeping it; None ends this.\n\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.")
      .def(
          "notification_fd",
          [](PyAgent& self) { return self.ask([](headrace::Agent& a) { return a.notification_fd(); }); },
          "A descriptor that is readable while notifications wait. The agent owns it.")
      .def(
          "notifications",
          [](nb::handle self, const std::string& peer, nb::handle prefix) {
            return nb::module_::import_("headrace._asyncio").attr("notifications")(self, peer, prefix);
          },
          nb::arg("peer") = "", nb::arg("prefix") = nb::bytes("", 0),
          nb::sig("def notifications(self, peer: str = '', prefix: bytes = b'') -> "
                  "collections.abc.AsyncIterator[tuple[str, bytes]]"),
          "An asynchronous iterator over notifications, as (peer, payload).\n\n"
          "It ends when the agent is closed.\n"
          "peer, prefix: as in take_notifications; other notifications are not taken.")
      .def("_take_notification", &take_notification, nb::arg("peer"), nb::arg("prefix"),
           nb::sig("def _take_notification(self, peer: str, prefix: bytes) -> tuple[str, bytes] | None"),
           "The oldest of take_notifications alone; None: none has arrived. For headrace._asyncio.")
      .def(
          "_watch_notifications",
          [](PyAgent& self, const std::string& peer, nb::handle prefix) {
            const NotificationFilter filter = to_filter(peer, prefix);
            return self.ask([&](headrace::Agent& a) { return a.watch_notifications(filter); });
          },
          nb::arg("peer"), nb::arg("prefix"),
          nb::sig("def _watch_notifications(self, peer: str, prefix: bytes) -> _NotificationWatch"),
          "Watches for notifications that pass the filter; for headrace._asyncio.")
      .def(
          "_closing_fd", [](PyAgent& self) { return self.closing_fd(); },
          "A descriptor that becomes readable when the agent is closed; for headrace._asyncio.");
}

}  // namespace headrace::python
